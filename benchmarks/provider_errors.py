"""`python -m benchmarks.provider_errors --recordings DIR`: what recorded error texts of real runs are classified as.

Knows: what each kind of text is, by reading it. Must not know: how the classifier works.

The texts come from a harness with faults of its own (trae-agent on ISO-Bench): it left calls unanswered, sent results
that are empty, and ran into expired logins and empty accounts. Kinds are told apart by a hash of the text's beginning
with numbers and ids removed; a kind that nobody has read fails `--check`.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from hashlib import sha256
from pathlib import Path
from time import perf_counter
from typing import NamedTuple

from benchmarks.grids import Check, Grid, show, what_is_asked
from policyengine import ProviderError
from policyengine.providers.errors import ERROR_CLASSES, classify_provider_error

SET = "trae_iso_bench"
BEGINNING = 100
"""Characters of a normalised text that make its kind: the compact file holds no more than the start of each."""
TURNS = 20


class Kind(NamedTuple):
    """What a person who read a kind of text says it is, and whether it names ids or the place of a message."""

    about: str
    code: str
    ids: bool = False
    index: bool = False


KINDS = {
    "44da8d02b630": Kind("an expired login that could not be refreshed", "authentication"),
    "f9e19993a4b8": Kind("a login that does not exist", "authentication"),
    "12fd5be5b7ee": Kind("a wrong key, in quotes", "authentication"),
    "dcc6d2c66ec3": Kind("a wrong key", "authentication"),
    "6d7e929fb236": Kind("an empty account, under status 429", "quota_exhausted"),
    "6c85a94af9c2": Kind("a call without its output", "invalid_history", ids=True),
    "844684b2e475": Kind("calls without their results", "invalid_history", ids=True, index=True),
    "6a2ac89f4263": Kind("a result that is an error and empty", "invalid_history", index=True),
    "a10a7cf21697": Kind("a result without its call", "invalid_history"),
    "bdec930578d1": Kind("arguments of a call that end inside a string", "malformed_output"),
    "8ec9a0b7fe5c": Kind("no connection", "connection"),
    "527c3148d28b": Kind("status 400 and nothing else", "invalid_request"),
    "59aa8b46a89b": Kind("a tool that is offered without its type", "invalid_request"),
}
"""By hash."""


class Text(NamedTuple):
    """One recorded error text, and the part of the set it is from."""

    part: str
    text: str


def main(argv: Sequence[str] | None = None) -> int:
    """Print the tables; return 0, 1 if `--check` and a condition does not hold, 2 if the work cannot be done."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.provider_errors", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--recordings", type=Path, required=True, metavar="DIR", help="folder that holds the sets")
    parser.add_argument("--check", action="store_true", help="exit 1 unless every condition at the end holds")
    parser.add_argument("--markdown", action="store_true", help="print Markdown")
    arguments = parser.parse_args(argv)
    try:
        texts = [*read_texts(arguments.recordings / SET)]
    except (OSError, ValueError, KeyError, TypeError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    grids, checks = report(texts)
    for grid in grids:
        show(grid, markdown=arguments.markdown)
    return 1 if arguments.check and not all(check.holds for check in checks) else 0


def read_texts(folder: Path) -> Iterator[Text]:
    """Yield every error text of the raw runs and of the compact file.

    Raises:
        ValueError: there is none.
    """
    empty = True
    for path in sorted((folder / "raw").glob("*.json")):
        for step in json.loads(path.read_text(encoding="utf-8"))["agent_steps"]:
            if step.get("error"):
                empty = False
                yield Text("raw", str(step["error"]))
    for line in (folder / "compact.jsonl").read_text(encoding="utf-8").splitlines():
        for turn in json.loads(line)["turns"]:
            if turn.get("error"):
                empty = False
                yield Text("compact", str(turn["error"]))
    if empty:
        raise ValueError(f"{folder} holds no error text")


def kind_of(text: str) -> str:
    """Return the hash of a text's beginning without what differs from one failure to the next."""
    plain = re.sub(r"\b(call|toolu_bdrk|toolu|req|msg)_\w+", "ID", text)
    plain = re.sub(r"[\d*\"\\]+", "#", re.sub(r"\s+", " ", plain))
    return sha256(plain[:BEGINNING].encode()).hexdigest()[:12]


def report(texts: Sequence[Text]) -> tuple[list[Grid], list[Check]]:
    """Return the tables and what is asked of them."""
    found = [(item, kind_of(item.text), classify_provider_error(item.text)) for item in texts]
    checks = [*_checks(found)]
    grids = [_class_grid(found), _kind_grid(found), _cost_grid(texts)]
    return [*grids, what_is_asked(checks)], checks


Found = tuple[Text, str, ProviderError]


def _class_grid(found: Sequence[Found]) -> Grid:
    rows = []
    for code in ERROR_CLASSES:
        mine = [(item, kind, error) for item, kind, error in found if error.code == code]
        if mine:
            parts = Counter(item.part for item, *_ in mine)
            kinds = len({kind for _, kind, _ in mine})
            error = mine[0][2]
            again = "yes" if error.retry_same_request else "no"
            rows.append((code, error.remedies[0], again, str(kinds), str(parts["raw"]), str(parts["compact"])))
    columns = ("class", "first remedy", "same request again", "#kinds", "#raw", "#compact")
    return Grid(f"Classes of {len(found)} error texts", columns, tuple(rows))


def _kind_grid(found: Sequence[Found]) -> Grid:
    counts = Counter(kind for _, kind, _ in found)
    codes = {kind: error.code for _, kind, error in found}
    unread = Kind("not read by anybody", "?")
    rows = tuple(
        (kind, KINDS.get(kind, unread).about, KINDS.get(kind, unread).code, codes[kind], str(count))
        for kind, count in counts.most_common()
    )
    return Grid("Kinds of text", ("kind", "what it is", "class by hand", "class", "#texts"), rows)


def _cost_grid(texts: Sequence[Text]) -> Grid:
    lowest = []
    for item in texts:
        turns = []
        for _ in range(TURNS if len(item.text) < 100_000 else 1):
            begun = perf_counter()
            classify_provider_error(item.text)
            turns.append(perf_counter() - begun)
        lowest.append(min(turns))
    row = (str(len(texts)), f"{sum(lowest) / len(lowest) * 1e6:.0f}", f"{max(lowest) * 1e6:.0f}")
    return Grid("Cost", ("#texts", "#us on average", "#us at most"), (row,))


def _checks(found: Sequence[Found]) -> Iterator[Check]:
    unread = {kind for _, kind, _ in found if kind not in KINDS}
    yield Check("every kind of text was read by a person", f"{len(unread)} were not", not unread)
    known = [(KINDS[kind], error) for _, kind, error in found if kind in KINDS]
    right = sum(kind.code == error.code for kind, error in known)
    yield Check("every text is of the class that a person says", f"{right} of {len(found)}", right == len(found))
    named = [error for kind, error in known if kind.ids]
    with_ids = sum(bool(error.ids) for error in named)
    yield Check("ids are read where the text names them", f"{with_ids} of {len(named)}", with_ids == len(named))
    placed = [error for kind, error in known if kind.index]
    with_index = sum(error.message_index is not None for error in placed)
    asked = "the message is read where the text names it"
    yield Check(asked, f"{with_index} of {len(placed)}", with_index == len(placed))
    futile = sum(
        error.code in ("invalid_history", "authentication") and error.retry_same_request is True for _, error in known
    )
    yield Check("no request that fails for ever is to be sent again", str(futile), futile == 0)


if __name__ == "__main__":
    sys.exit(main())
