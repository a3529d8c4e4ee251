"""Text protocols that a policy declares: `<execute>code</execute>`, `GET url`, `FINISH(answer)`, `[search(q="x")]`.

Knows: the four forms a declared call may have, and what of them each mode reads.
Must not know: the one-object protocol, other systems' notations, guards.

The protocol of a run is the list of its forms; one call (or one list of Python calls) makes a reply. Whatever was made
up as another speaker's turn after a call is not part of the reply.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from policyengine.identity import call_identity
from policyengine.messages import ToolCall
from policyengine.parsing.found import Terms
from policyengine.parsing.notation import Form, described, examples_of
from policyengine.parsing.objects import object_at
from policyengine.parsing.pycalls import MAX_CALLS, skip
from policyengine.parsing.pylists import read_lists
from policyengine.parsing.quoting import IMAGINED, is_illustration
from policyengine.parsing.repair import encodable
from policyengine.parsing.strict import StrictError, dumps
from policyengine.parsing.verdict import Verdict, VerdictKind

__all__ = ["Form", "described", "examples_of", "read_forms"]


class _Hit(NamedTuple):
    """A call found in a text. `tagged`: text around it belongs to the protocol; `listed`: it may have company."""

    start: int
    end: int
    name: str
    args: dict[str, Any]
    answer: bool = False
    repairs: tuple[str, ...] = ()
    tagged: bool = False
    listed: bool = False


class _Unreadable(Exception):
    """Something that is clearly meant as a call and cannot be read."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)


def read_forms(
    text: str, forms: Sequence[Form], terms: Terms, *, fence: bool, recovery: bool, answer_room: int
) -> Verdict:
    """Return the verdict on a reply in a declared protocol.

    `fence` allows a fence around everything, `recovery` prose around a call and odd spellings; `answer_room` is how
    many characters that are no space may follow a final answer.
    """
    whole = text.strip()
    if not whole:
        return Verdict("empty")
    body, thought = _without_reasoning(whole, forms) if recovery else (whole, ())
    if not body:
        return Verdict("reasoning_only", text=whole)
    body, repairs = _unfenced(body) if fence else (body, ())
    if not body:
        return Verdict("empty")
    repairs = (*thought, *repairs)
    try:
        hits = [hit for form in forms for hit in _READERS[form.form](body, form, terms, recovery)]
    except _Unreadable as error:
        kind: VerdictKind = "truncated" if error.reason == "truncated" else "wrong_shape"
        return Verdict(kind, text=whole, reason=error.reason)
    hits = _outermost(hits)
    hits, reasoned = _after_reasoning(hits, body)
    if reasoned and recovery and not thought:
        repairs = (*repairs, "strip_reasoning")
    hits = [hit for hit in hits if not _is_quoted(body, hit.start) and not is_illustration(body, hit.start, hit.end)]
    if not hits:
        return _without_calls(body, whole, forms)
    return _of_hits(hits, body, repairs, recovery=recovery, answer_room=answer_room)


def _without_calls(body: str, whole: str, forms: Sequence[Form]) -> Verdict:
    if any(form.form == "prose" for form in forms):
        if body[0] in "[{<":
            return Verdict("wrong_shape", text=whole, reason="no_call")
        return Verdict("ok", (), whole)
    return Verdict("prose", text=whole, reason="no_call")


def _of_hits(
    hits: list[_Hit],
    body: str,
    repairs: tuple[str, ...],
    *,
    recovery: bool,
    answer_room: int,
) -> Verdict:
    tagged = hits[0].tagged
    end, imagined = hits[0].end, False
    for hit in hits[1:]:
        if recovery and IMAGINED.search(body, end, hit.start):
            imagined = True
            break
        end = hit.end
    kept = [hit for hit in hits if hit.end <= end]
    after = IMAGINED.search(body, end) if recovery else None
    imagined = imagined or after is not None
    rest = body[end : after.start() if after else len(body)]
    before, rest = _TURN.sub("", body[: kept[0].start]).strip(), _without_tokens(rest).strip()
    between = "".join(body[one.end : other.start] for one, other in pairwise(kept)).strip(" \t\r\n,")
    lists = all(hit.listed for hit in kept)
    if not lists and len(kept) > 1:
        kept = list({call_identity(hit.name, hit.args): hit for hit in kept}.values())
        if len(kept) > 1:
            return Verdict("multiple", text=body, reason="two_calls")
    found = dict.fromkeys((*repairs, *(repair for hit in kept for repair in hit.repairs)))
    around = [part for part in (before, between, rest) if part]
    fenced = tagged and _inside_fence(body, kept[0].start)
    if around and not tagged and not recovery:
        return Verdict("prose", text=body, reason="text_around_call")
    for name, applies in (
        ("strip_fence", fenced),
        ("drop_imagined_turn", imagined),
        ("leading_prose", before and not tagged),
        ("trailing_prose", (between or rest) and not tagged),
    ):
        if applies:
            found[name] = None
    if kept[0].answer:
        if len("".join((between + rest).split())) > answer_room and not tagged:
            return Verdict("prose", text=body, reason="answer_amid_prose")
        (value,) = kept[0].args.values()
        return Verdict("ok", (), value, repairs=tuple(found)) if value else Verdict("empty", reason="empty_answer")
    calls = tuple(ToolCall(f"text-{number}", hit.name, dumps(hit.args), hit.args) for number, hit in enumerate(kept, 1))
    guess = fenced or (bool(around) and not tagged)
    return Verdict("ok", calls, "\n".join(around), repairs=tuple(found), guess=guess)


# ---- the forms


def _tags(text: str, form: Form, terms: Terms, recovery: bool) -> list[_Hit]:
    word = re.escape(form.word)
    opening = re.compile(rf"<{word}>") if not recovery else re.compile(rf"<\s?{word}\s?>", re.IGNORECASE)
    closing = re.compile(rf"</{word}>") if not recovery else re.compile(rf"<\s?/\s?{word}\s?>", re.IGNORECASE)
    hits, at = [], 0
    while opened := opening.search(text, at):
        closed = closing.search(text, opened.end())
        if closed is None:
            raise _Unreadable("truncated")
        inside = text[opened.end() : closed.start()].strip()
        odd = (opened.group(), closed.group()) != (f"<{form.word}>", f"</{form.word}>")
        repairs: tuple[str, ...] = ("tag_spelling",) if odd else ()
        body, stripped = _unfenced(inside)
        body, mended = _sendable(body, terms)
        args, repairs = {form.argument: body}, (*repairs, *stripped, *mended)
        hits.append(_Hit(opened.start(), closed.end(), form.name, args, form.answer, repairs, tagged=True))
        at = closed.end()
        _check_number(hits)
        following = opening.search(text, at)
        if opening.search(inside) or closing.search(text, at, following.start() if following else len(text)):
            # Which of the tags belong together is not in the text; one of them may be data.
            raise _Unreadable("nested_tags")
    return hits


def _lines(text: str, form: Form, terms: Terms, recovery: bool) -> list[_Hit]:
    hits = []
    opening = re.compile(rf"^{re.escape(form.word)}[ \t]+([^\n]*)", re.MULTILINE)
    for opened in opening.finditer(text):
        if not recovery and opened.start() > 0:
            break
        rest, repairs = _sendable(opened.group(1).strip(), terms)
        args: dict[str, Any] = {form.argument: rest}
        end = opened.end()
        if form.payload:
            at = skip(text, end)
            if text[at : at + 1] not in ("{", "["):
                raise _Unreadable("payload_missing")
            try:
                part = object_at(text, at, terms)
            except StrictError as error:
                raise _Unreadable(error.reason) from None
            args[form.payload], end = part.value, part.end
            repairs += part.repairs
        hits.append(_Hit(opened.start(), end, form.name, args, form.answer, repairs))
        _check_number(hits)
    return hits


def _check_number(hits: list[_Hit]) -> None:
    if len(hits) > MAX_CALLS:
        raise _Unreadable("too_many_calls")


def _calls(text: str, form: Form, terms: Terms, recovery: bool) -> list[_Hit]:
    opening = re.compile(rf"^{re.escape(form.word)}[ \t]?([(\[])", re.MULTILINE)
    opened = opening.search(text)
    if opened is None or (not recovery and opened.start() > 0):
        return []
    cut = IMAGINED.search(text, opened.end()) if recovery else None
    end = len(_without_tokens(text[: cut.start() if cut else len(text)]))
    listed = opened.group(1) == "["
    if listed and not terms.mending:
        raise _Unreadable("parentheses_missing")
    if text[end - 1] != ("]" if listed else ")") or end <= opened.end():
        raise _Unreadable("truncated" if ")" not in text[opened.end() :] and not listed else "text_after_call")
    inside = text[opened.start(1) : end] if listed else text[opened.end() : end - 1]
    repairs = ("missing_parentheses",) if listed else ()
    inside, mended = _sendable(inside.strip(), terms)
    return [_Hit(opened.start(), end, form.name, {form.argument: inside}, form.answer, repairs + mended)]


def _python(text: str, _: Form, terms: Terms, recovery: bool) -> list[_Hit]:
    cut = IMAGINED.search(text, 1) if recovery else None
    try:
        found = read_lists(text[: cut.start()] if cut else text, terms, anywhere=recovery)
    except StrictError as error:
        raise _Unreadable(error.reason) from None
    return [_Hit(call.start, call.end, call.name, call.args, False, call.repairs, listed=True) for call in found]


def _prose(*_: Any) -> list[_Hit]:
    return []


# ---- small steps


def _sendable(text: str, terms: Terms) -> tuple[str, tuple[str, ...]]:
    """Return text that can be sent: half a character is replaced where that is allowed, else nothing can be read."""
    mended, repairs = encodable(text)
    if repairs and not terms.mending:
        raise _Unreadable(repairs[0])
    return mended, repairs


def _unfenced(text: str) -> tuple[str, tuple[str, ...]]:
    """Return what a fence around the whole text holds."""
    match = _FENCE.fullmatch(text)
    if match is None or "```" in match.group(1):
        return text, ()
    return match.group(1).strip(), ("strip_fence",)


def _without_tokens(text: str) -> str:
    """Return the text without spaces and control tokens at its end."""
    text = text.rstrip()
    while text.endswith(">"):
        at = text.rfind("<", max(0, len(text) - LONGEST_TOKEN))
        if at < 0 or _TOKEN.fullmatch(text, at) is None:
            break
        text = text[:at].rstrip()
    return text


def _outermost(hits: list[_Hit]) -> list[_Hit]:
    """Return the hits in their order, without those that stand in another one: they are its data."""
    found: list[_Hit] = []
    for hit in sorted(hits, key=lambda hit: (hit.start, -hit.end)):
        if not found or hit.start >= found[-1].end or (hit.listed and found[-1].listed):
            found.append(hit)
    return found


def _is_quoted(text: str, at: int) -> bool:
    """Return whether a line is a block quote."""
    return _QUOTE.match(text, text.rfind("\n", 0, at) + 1) is not None


def _without_reasoning(text: str, forms: Sequence[Form]) -> tuple[str, tuple[str, ...]]:
    """Return the text without the reasoning that stands in front of the first call; what is in a call is data."""
    opening = _opening_of(forms)
    pieces: list[str] = []
    at = 0
    called = opening.search(text) if opening else None
    while thought := _THINK.search(text, at):
        if opening and called is not None and called.start() < at:
            called = opening.search(text, at)
        if called is not None and called.start() < thought.start():
            break
        closed = _THOUGHT.search(text, thought.end())
        pieces.append(text[at : thought.start()])
        at = closed.end() if closed else len(text)
    return "".join((*pieces, text[at:])).strip(), ("strip_reasoning",) if at else ()


def _opening_of(forms: Sequence[Form]) -> re.Pattern[str] | None:
    """Return where a call in any of the forms may begin."""
    known = [_OPENINGS[form.form].format(re.escape(form.word)) for form in forms if form.form in _OPENINGS]
    return re.compile("|".join(known), re.MULTILINE) if known else None


def _after_reasoning(hits: list[_Hit], text: str) -> tuple[list[_Hit], bool]:
    """Return the hits that stand outside reasoning, and whether there is any."""
    reasoned = False
    at = 0
    while mark := _MARK.search(text, at):
        inside = next((hit for hit in hits if hit.start <= mark.start() < hit.end), None)
        if inside is not None:
            at = inside.end
            continue
        reasoned = True
        if mark.group().startswith("</"):  # the beginning of the reasoning was part of the prompt
            at = mark.end()
            hits = [hit for hit in hits if hit.start >= at]
            continue
        closed = _THOUGHT.search(text, mark.end())
        at = closed.end() if closed else len(text)
        hits = [hit for hit in hits if not mark.start() < hit.start < at]
    return hits, reasoned


def _inside_fence(text: str, at: int) -> bool:
    return len(_FENCE_MARK.findall(text, 0, at)) % 2 == 1


_READERS: dict[str, Callable[[str, Form, Terms, bool], list[_Hit]]] = {
    "tag": _tags,
    "line": _lines,
    "call": _calls,
    "python": _python,
    "prose": _prose,
}


_TURN = re.compile(r"\A\s*Assistant:\s*")
LONGEST_TOKEN = 40
_TOKEN = re.compile(r"<(?:\|[\w-]{1,30}\|?|end_of_turn|eos|/s)>")
_FENCE = re.compile(r"```[\w-]{0,20}[ \t]*\n(.*?)\n?[ \t]{0,40}```", re.DOTALL)
_OPENINGS = {
    "tag": r"<\s?{}\s?>",
    "line": r"^{}[ \t]",
    "call": r"^{}[ \t]?[(\[]",
    "python": r"\[\s*[A-Za-z_][\w.]*\(",
}
_QUOTE = re.compile(r"[ \t]{0,3}>")
_THOUGHTS = "(?:think|thinking|thought|thoughts|reasoning)"
_THINK = re.compile(f"<{_THOUGHTS}>")
_THOUGHT = re.compile(f"</{_THOUGHTS}>")
_MARK = re.compile(f"</?{_THOUGHTS}>")
_FENCE_MARK = re.compile(r"^[ \t]{0,3}```", re.MULTILINE)
