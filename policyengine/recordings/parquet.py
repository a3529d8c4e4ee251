"""Parquet files to JSON values: every row is a value, as a line is in a file of lines.

Knows: columns that hold JSON, what a table makes of records with different fields.
Must not know: what the values mean.

A row is an object with a member for each column. Texts in the columns of `JSON_COLUMNS` that hold an object or a list
are decoded, and so is the only column of a table. A list of chat messages under one of `CHAT_COLUMNS` is `messages`,
where there is no such column. In a nested record a null is a field that is missing: a table gives every record the
fields of all. Times are written in ISO 8601, bytes as the text they encode.

Needs the extra `parquet`, which is imported when the first such file is read. Rows are read by groups, few at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

JSON_COLUMNS = frozenset(
    {"messages", "chat", "conversation", "conversations", "trajectory", "traj", "history", "events", "steps", "state"}
    | {"output", "info", "request", "response", "metadata"}
)
CHAT_COLUMNS = ("conversation", "conversations", "trajectory", "chat")

NEEDED = "reading Parquet needs pyarrow: pip install 'agent-policyengine[parquet]'"

ROWS = 64
"""So many rows are in memory at a time, besides what Parquet itself needs for a group of them."""


class TableError(OSError):
    """A file cannot be read as Parquet, or not here."""


class Groups(NamedTuple):
    """Row groups from `start` up to `stop`, the number of their first row (from 1), and their size in bytes."""

    start: int
    stop: int
    row: int
    size: int


def rows(path: Path, start: int = 0, stop: int | None = None, row: int = 1) -> Iterator[tuple[int, Any]]:
    """Yield the rows of a file, or of some of its groups, with their numbers.

    Raises:
        TableError: the file cannot be read.
    """
    arrow, parquet = _arrow()
    decode = _decoder()
    try:
        with parquet.ParquetFile(path) as file:
            for group in range(start, file.num_row_groups if stop is None else stop):
                for batch in file.iter_batches(batch_size=ROWS, row_groups=[group]):
                    for value in batch.to_pylist():
                        yield row, _value(value, decode)
                        row += 1
    except (arrow.ArrowException, OSError, ValueError, ArithmeticError, RecursionError) as error:
        raise TableError(_reason(error)) from None  # of a damaged file, values are no text, no date or no number


def groups(path: Path, size: int) -> list[Groups]:
    """Return all row groups of a file, put together until they have `size` bytes; raises as `rows` does."""
    arrow, parquet = _arrow()
    try:
        with parquet.ParquetFile(path) as file:
            about = [file.metadata.row_group(number) for number in range(file.num_row_groups)]
            sizes = [(group.num_rows, _stored(group)) for group in about]
    except (arrow.ArrowException, OSError, ValueError) as error:
        raise TableError(_reason(error)) from None
    found: list[Groups] = []
    start, first, row, stored = 0, 1, 1, 0
    for number, (count, stored_here) in enumerate(sizes, start=1):
        row, stored = row + count, stored + stored_here
        if stored >= size or number == len(sizes):
            found.append(Groups(start, number, first, stored))
            start, first, stored = number, row, 0
    return found


def _arrow() -> tuple[Any, Any]:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise TableError(NEEDED) from None
    return pyarrow, parquet


def _decoder() -> Any:
    from policyengine.recordings.loading import NotJsonError, decode

    def decoded(text: str) -> Any:
        if text.lstrip()[:1] not in ("{", "["):
            return text
        try:
            return decode(text)
        except NotJsonError:
            return text  # the reader that expects an object or a list there says what it found

    return decoded


def _stored(group: Any) -> int:
    return sum(group.column(number).total_compressed_size for number in range(group.num_columns))


def _reason(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return f"not Parquet: {str(error).partition(chr(10))[0]}"


def _value(row: dict[str, Any], decode: Any) -> Any:
    value = {name: _plain(held) for name, held in row.items()}
    if len(value) == 1:
        (only,) = value.values()
        whole = decode(only) if isinstance(only, str) else only
        if isinstance(whole, dict):
            return whole
    for name in value.keys() & JSON_COLUMNS:
        if isinstance(value[name], str):
            value[name] = decode(value[name])
    if "messages" not in value:
        chat = next((name for name in CHAT_COLUMNS if _is_chat(value.get(name))), None)
        if chat is not None:
            value["messages"] = value[chat]
    return value


def _is_chat(value: Any) -> bool:
    first = value[0] if isinstance(value, list) and value else None
    return isinstance(first, dict) and isinstance(first.get("role"), str)


def _plain(value: Any) -> Any:
    """Return a value in the types of JSON; in records what is null is left out."""
    if isinstance(value, str | int | float) or value is None:
        return value
    if isinstance(value, dict):
        return {name: _plain(held) for name, held in value.items() if held is not None}
    if isinstance(value, list):
        if value and all(isinstance(item, tuple) for item in value):  # a map
            return {str(name): _plain(held) for name, held in value}
        return [_plain(item) for item in value]
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    if isinstance(value, Decimal):
        return float(value)
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    return value.total_seconds() if isinstance(value, timedelta) else str(value)
