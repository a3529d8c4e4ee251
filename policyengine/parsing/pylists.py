"""Lists of Python calls as a protocol of their own: `[search(q="x")]`, one or several, in the spellings models use.

Knows: lists, brackets in the wrong place, where a line must end. Must not know: forms, verdicts.

Every line that begins a list must be readable to its end: if one call of a reply cannot be read, none is returned.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from policyengine.parsing.found import Terms
from policyengine.parsing.names import resolve
from policyengine.parsing.pycalls import MAX_CALLS, arguments_at, skip
from policyengine.parsing.strict import StrictError


class PythonCall(NamedTuple):
    """One call with its place in the text."""

    start: int
    end: int
    name: str
    args: dict[str, Any]
    repairs: tuple[str, ...] = ()


def read_lists(text: str, terms: Terms, *, anywhere: bool) -> list[PythonCall]:
    """Return the calls of all lists in a text: of one list that is everything, or `anywhere` of those on own lines.

    Raises:
        StrictError: a list cannot be read, or calls stand where nobody can say whether they are meant.
    """
    if not anywhere:
        if text[:1] != "[":
            return []
        whole, end = _list(text, 0, terms, exactly=True)
        if text[end:].strip():
            raise StrictError("trailing_text", end)
        return whole
    calls: list[PythonCall] = []
    at = lists = 0
    while (opened := (_NEXT if lists else _LINE).search(text, at)) is not None:
        found, at = _list(text, opened.end() - 1, terms, exactly=False)
        lists += 1
        calls += found
        if len(calls) > MAX_CALLS:
            raise StrictError("too_many_calls", at)
        if _ENDS.match(text, at) is None:
            raise StrictError("text_after_list", at)
    if not calls:
        return _bare(text, terms)
    _refuse_calls_in_prose(text, calls)
    return calls if lists == 1 else [call._replace(repairs=(*call.repairs, "several_lists")) for call in calls]


def _list(text: str, at: int, terms: Terms, *, exactly: bool) -> tuple[list[PythonCall], int]:
    """Read one list whose bracket stands at `at`."""
    calls: list[PythonCall] = []
    start, at = at, skip(text, at + 1)
    while text[at : at + 1] != "]":
        header = _NAME.match(text, at)
        if header is None:
            raise StrictError("truncated" if at >= len(text) else "python_call", at)
        place = skip(text, header.end())
        opener = text[place : place + 1]
        if opener == "(":
            args, place, repairs = arguments_at(text, place + 1, ")")
        elif not exactly and opener == "]" and not calls and text[place + 1 : place + 2] == "(":
            args, place, repairs = arguments_at(text, place + 2, ")")
            call = _call(start, place, header.group(), args, (*repairs, "bracketed_name"), terms)
            return [call], place
        elif not exactly and not calls and _ARGUMENT.match(text, place):
            place = skip(text, place + (opener == ","))
            args, place, repairs = arguments_at(text, place, "]")
            call = _call(start, place, header.group(), args, (*repairs, "missing_parentheses"), terms)
            return [call], place
        else:
            raise StrictError("truncated" if place >= len(text) else "arguments_missing", place)
        calls.append(_call(start, place, header.group(), args, repairs, terms))
        at = skip(text, place)
        if text[at : at + 1] == ",":
            at = skip(text, at + 1)
        elif text[at : at + 1] != "]":
            raise StrictError("truncated" if at >= len(text) else "python_call", at)
    if not calls:
        raise StrictError("empty_list", at)
    return [call._replace(end=at + 1) for call in calls], at + 1


def _bare(text: str, terms: Terms) -> list[PythonCall]:
    """Return calls without a list around them, where the text holds nothing else."""
    header = _NAME.match(text)
    if header is None or text[header.end() : header.end() + 1] != "(":
        return []
    try:
        args, end, repairs = arguments_at(text, header.end() + 1, ")")
    except StrictError as error:
        if error.reason == "truncated":
            raise
        return []
    if text[end:].strip():
        return []
    return [_call(0, end, header.group(), args, (*repairs, "python_call"), terms)]


def _call(
    start: int, end: int, written: str, args: dict[str, Any], repairs: tuple[str, ...], terms: Terms
) -> PythonCall:
    name = resolve(written, terms.tools) if terms.mending else None
    if name is None:
        return PythonCall(start, end, written, args, repairs)
    return PythonCall(start, end, name.text, args, (*repairs, *name.repairs))


def _refuse_calls_in_prose(text: str, calls: list[PythonCall]) -> None:
    """Nothing runs half: a call that stands in the middle of a line was not read."""
    ends = [0, *dict.fromkeys(call.end for call in calls)]
    starts = [*dict.fromkeys(call.start for call in calls), len(text)]
    for begin, end in zip(ends, starts, strict=True):
        if _IN_PROSE.search(text, begin, end):
            raise StrictError("call_in_prose", begin)


_LINE = re.compile(r"^[ \t]*\[", re.MULTILINE)
_NEXT = re.compile(r"^[ \t]*\[|(?<=\])[ \t]*,[ \t]*\[|(?<=\])[ \t]+\[", re.MULTILINE)
_ENDS = re.compile(r"[ \t]*+,?[ \t]*+(?:<[^<>\n]{1,40}>[ \t]*+)*+(?:\n|\[|\Z)")
_NAME = re.compile(r"[A-Za-z_][\w.]{0,200}")
_ARGUMENT = re.compile(r",?[ \t]*[A-Za-z_]\w{0,100}[ \t]?=(?!=)")
_IN_PROSE = re.compile(r"[A-Za-z_][\w.]{0,200}\((?:\s*[A-Za-z_]\w{0,100}\s?=|\s*\))")
