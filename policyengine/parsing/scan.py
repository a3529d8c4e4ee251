"""Find the calls in a text: walk it once from left to right, past everything that only shows a call.

Knows: fences, inline code, block quotes, reasoning tags, where a call may begin. Must not know: verdicts, protocols.

Reasoning, inline code, block quotes and fences that do not begin with a call are passed over. A call that cannot be
read ends the walk: what follows may be part of it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from policyengine.parsing.dialects import NS, OPENING, WRAPPERS, made, read_call
from policyengine.parsing.found import Found, Terms, Unread
from policyengine.parsing.objects import object_at
from policyengine.parsing.pycalls import read_python, skip
from policyengine.parsing.quoting import IMAGINED, NEAR, is_illustration, starts_anew
from policyengine.parsing.shapes import ShapeError, looks_like_request, request, requests_in
from policyengine.parsing.strict import StrictError, is_cut_off

SCANNABLE = 1024 * 1024
"""Longest text in characters in which calls are looked for."""

MAX_TRIES = 16
"""How many objects that turn out to be no JSON are tried in one text, and how many unreadable calls passed over."""


MEMBER = 120
"""How many characters before an object are looked at for the key that makes it a member of another one."""


class Scan(NamedTuple):
    """What a text holds.

    `prose` is the text outside calls, reasoning and marks, before and after the first call. `fenced` says that a call
    stood in a fence, `reasoned` that reasoning was passed over, `shown` that calls were only shown, `imagined` that
    another speaker's turn and the calls behind it were made up and left out.
    """

    calls: list[Found]
    unread: Unread | None
    before: str
    after: str
    fenced: bool = False
    reasoned: bool = False
    shown: bool = False
    imagined: bool = False

    @property
    def prose(self) -> str:
        """The text around the calls."""
        return "\n".join(filter(None, (self.before, self.after)))


def scan(text: str, terms: Terms) -> Scan:
    """Return the calls in `text`, in their order. It begins and ends with what the model wrote, not with spaces."""
    return _Walk(text, terms).walk()


class _Walk:
    """One walk through one text."""

    def __init__(self, text: str, terms: Terms) -> None:
        self.text = text
        self.terms = terms
        self.head = len(text) - len(text.lstrip())
        self.tail = len(text.rstrip())
        self.calls: list[Found] = []
        self.unread: Unread | None = None
        self.pieces: list[str] = []
        self.first = 0
        self.taken = 0
        self.fenced = False
        self.reasoned = False
        self.shown = False
        self.imagined = False
        self.behind = 0
        self.tries = MAX_TRIES
        self.budget = 2 * len(text) + 10_000
        self.no_json_before = 0
        self.paragraph = 0
        self.unclosed: set[re.Pattern[str]] = set()
        self.shown_to = 0
        self.steps: dict[str | None, Callable[[re.Match[str]], int]] = {
            "fence": self._fence,
            "quote": self._quote,
            "think": self._think,
            "thought": self._thought,
            "call": self._call,
            "code": self._code,
            "json": self._json,
            "python": self._python,
        }

    def walk(self) -> Scan:
        # An array is a list of requests only where it is the whole text.
        at = self._read_json(0, 0) if _ARRAY.match(self.text) else 0
        while self.unread is None:
            match = _MARK.search(self.text, at)
            if match is None:
                break
            at = self.steps[match.lastgroup](match)
        self.pieces.append(self.text[self.taken :] if self.unread is None else "")
        before, after = (_clean("\n".join(part)) for part in (self.pieces[: self.first], self.pieces[self.first :]))
        if not self.calls:
            before, after = "\n".join(filter(None, (before, after))), ""
        return Scan(self.calls, self.unread, before, after, self.fenced, self.reasoned, self.shown, self.imagined)

    # ---- what only shows or reasons

    def _code(self, match: re.Match[str]) -> int:
        """Inline code: go behind it, if it is closed in its paragraph."""
        run, start = match.group("code"), match.end("code")
        if start > self.paragraph:
            found = self.text.find("\n\n", start)
            self.paragraph = found if found >= 0 else len(self.text)
        closed = self.text.find(run, start, self.paragraph)
        if closed < 0:
            return start
        if "{" in self.text[start:closed]:
            self.shown_to = closed
        return closed + len(run)

    def _quote(self, match: re.Match[str]) -> int:
        return match.end()

    def _think(self, match: re.Match[str]) -> int:
        closed = _THOUGHT.search(self.text, match.end())
        end = closed.end() if closed else len(self.text)
        self._take(match.start(), end)
        self.reasoned = True
        return end

    def _thought(self, match: re.Match[str]) -> int:
        """The end of reasoning whose beginning was part of the prompt: all before it was reasoning."""
        self.calls.clear()
        self.pieces.clear()
        self.behind = match.end()
        self.first = 0
        self.fenced = self.shown = False
        self.taken = match.end()
        self.reasoned = True
        return match.end()

    def _fence(self, match: re.Match[str]) -> int:
        """A fence: if it begins with a call it may be one, otherwise it is code."""
        mark = match.group("fence").strip()
        closing = self._closing(mark, match.end())
        end = closing.end() if closing else len(self.text)
        language = mark.lstrip("`~").strip().lower()
        at = skip(self.text, match.end())
        begins = _CALL.match(self.text, at) or self.text[at : at + 1] in ("{", "[") or _PYTHON.match(self.text, at)
        if _LANGUAGE.fullmatch(language) is None or not begins or at >= end:
            return end
        count = len(self.calls)
        behind = self._in_fence(match.start(), at, closing.start() if closing else len(self.text))
        if len(self.calls) == count and self.unread is None:
            if language in _CALLING and not self.shown:
                return max(end, self._cannot_read(Unread(match.start(), end, "markup", "markup"), match.start(), end))
            return max(end, behind)
        self.fenced = True
        if closing is not None and behind > closing.start():
            closing = self._closing(mark, behind)
        if closing is None:
            marks = _MARKS.match(self.text, behind)
            return self._drop(behind, marks.end() if marks else behind)
        inside = self.text[behind : closing.start()]
        if inside.strip():
            self.pieces.append(inside)
        return self._drop(behind, closing.end())

    def _closing(self, mark: str, at: int) -> re.Match[str] | None:
        """Return where a fence is closed. Where one is never closed, none after it is."""
        pattern = _BACKTICKS if mark[0] == "`" else _TILDES
        found = None if pattern in self.unclosed else pattern.search(self.text, at)
        if found is None:
            self.unclosed.add(pattern)
        return found

    def _drop(self, start: int, end: int) -> int:
        self.taken = max(self.taken, end)
        return max(start, end)

    def _in_fence(self, start: int, at: int, end: int) -> int:
        """Read calls one after another in a fence that opens at `start`; return the offset after the last."""
        while at < end and self.unread is None:
            behind = self._read_any(at, start)
            if behind <= at:
                break
            at = skip(self.text, behind)
            start = at
        return at

    def _read_any(self, at: int, start: int) -> int:
        opened = _CALL.match(self.text, at)
        if opened is not None:
            return self._read_markup(opened, start)
        if self.text[at : at + 1] in ("{", "["):
            python = _PYTHON.match(self.text, at)
            return self._read_python(at, start) if python else self._read_json(at, start, in_fence=True)
        return self._read_python(at, start) if _PYTHON.match(self.text, at) else at

    # ---- calls

    def _call(self, match: re.Match[str]) -> int:
        return self._read_markup(match, match.start())

    def _read_markup(self, match: re.Match[str], start: int) -> int:
        reading = read_call(self.text, match.start(), self.terms)
        if reading is None:
            return match.end()
        if isinstance(reading, Unread):
            return self._cannot_read(reading, start, match.end())
        if not reading:
            self._take(match.start(), match.end())
            return match.end()
        return self._add(reading, start)

    def _json(self, match: re.Match[str]) -> int:
        at = match.end() - 1
        if _MEMBER.search(self.text, max(0, at - MEMBER), at):
            return match.end()
        return max(self._read_json(at, at), match.end())

    def _read_json(self, at: int, start: int, *, in_fence: bool = False) -> int:
        """Read an object or array; what is no request is data and belongs to the prose."""
        if at < self.no_json_before or self.tries <= 0 or self.budget <= 0:
            return at
        try:
            part = object_at(self.text, at, self.terms, _FENCE_END if in_fence else None)
        except StrictError as error:
            return self._no_json(at, start, error)
        calls = self._requests(part.value, at, part.end, part.repairs)
        if isinstance(calls, Unread):
            return self._cannot_read(calls, start, part.end)
        if not calls:
            return part.end
        count = len(self.calls)
        end = self._add(calls, start)
        if len(self.calls) == count:
            return end
        closers = _CLOSERS.match(self.text, end)
        if closers and closers.group(1):
            if not self.terms.mending:
                self.unread = Unread(end, closers.end(), "extra_bracket", "json")
                return end
            self.calls[-1] = self.calls[-1]._replace(repairs=(*self.calls[-1].repairs, "extra_closer"))
            end = self._drop(end, closers.end())
        if in_fence:
            return end
        following = skip(self.text, end)
        if self.text[following : following + 1] == "{" and self.unread is None:
            return max(end, self._read_json(following, following))
        return end

    def _requests(self, value: object, at: int, end: int, repairs: tuple[str, ...]) -> list[Found] | Unread:
        values, listed = requests_in(value)
        calls: list[Found] = []
        for item in values:
            if listed and isinstance(item, dict) and "role" in item:
                return []  # messages of a conversation, with calls that were made in it
            try:
                shape = request(item, self.terms.tools, aliases=True, repairing=self.terms.mending)
            except ShapeError as error:
                if looks_like_request(item) and not listed:
                    return Unread(at, end, error.reason, "json")
                return []
            if listed:
                repairs = (*repairs, listed)
            calls.append(
                made(at, end, shape.name, shape.args, (*repairs, *shape.repairs), self.terms)._replace(notation="json")
            )
        return calls

    def _no_json(self, at: int, start: int, error: StrictError) -> int:
        self.tries -= 1
        self.budget -= max(error.at - at, 100)
        if _HEAD.match(self.text, at) or self._names_tool(at):
            return self._cannot_read(Unread(at, len(self.text), error.reason, "json"), start, at)
        # What is nested in a broken object is never a request of its own.
        paragraph = self.text.find("\n\n", max(at, min(error.at, len(self.text))))
        self.no_json_before = len(self.text) if error.reason == "truncated" or paragraph < 0 else paragraph
        return at

    def _names_tool(self, at: int) -> bool:
        """Return whether a broken object names an offered tool and has arguments."""
        named = _NAMING.search(self.text, at, at + NAMING)
        return named is not None and self.terms.tools.registered(named.group(1).removeprefix("functions."))

    def _python(self, match: re.Match[str]) -> int:
        at = skip(self.text, match.start("python"))
        return max(self._read_python(at, at), match.end())

    def _read_python(self, at: int, start: int) -> int:
        """Read Python calls, one list after another. In the middle of a text they are as likely to be code."""
        calls: list[Found] = []
        place = at
        while (reading := read_python(self.text, place, self.terms)) is not None:
            if isinstance(reading, Unread):
                return self._cannot_read(reading, start, at) if start <= self.head else place
            calls += reading
            separator = _SEPARATOR.match(self.text, calls[-1].end)
            place = separator.end() if separator else calls[-1].end
        if not calls or self.calls:
            return place
        end = calls[-1].end
        if _REST.match(self.text, end) or _TAG.match(self.text, skip(self.text, end)):
            return self._add(calls, start)
        if start <= self.head and self.text[at] == "[":
            return self._cannot_read(Unread(at, end, "python_call", "python"), start, at)
        return end

    def _add(self, calls: list[Found], start: int) -> int:
        end = calls[-1].end
        if self._is_shown(start, end):
            self.shown = True
            self.shown_to = end
            return end
        if self._is_imagined(start):
            return len(self.text)
        self._take(start, end)
        if not self.calls:
            self.first = len(self.pieces)
        self.calls += calls
        self.behind = end
        return end

    def _is_imagined(self, start: int) -> bool:
        """Return whether another speaker's turn was made up between the last call and `start`; end the walk then."""
        turn = IMAGINED.search(self.text, self.behind, start) if self.calls else None
        if turn is None:
            return False
        self.imagined = True
        self._take(turn.start(), len(self.text))
        return True

    def _cannot_read(self, unread: Unread, start: int, end: int) -> int:
        self.tries -= 1
        # A closing tag of reasoning further on tells nothing: it may be data in an argument of the broken call.
        if unread.reason != "truncated" and self.tries > 0 and self._is_shown(start, unread.end):
            self.shown = True
            return end
        if self._is_imagined(start):
            return len(self.text)
        self._take(start, end)
        if unread.reason == "too_long_to_mend" and is_cut_off(self.text, unread.start):
            unread = unread._replace(reason="truncated")
        self.unread = unread
        return end

    def _is_shown(self, start: int, end: int) -> bool:
        if start <= self.head and end >= self.tail:
            return False
        # The words that announce an example count for what follows it, too, unless something new is said in between.
        anew = starts_anew(self.text[max(self.shown_to, start - NEAR) : start])
        return is_illustration(self.text, start, end, max(self.taken, self.shown_to if anew else 0))

    def _take(self, start: int, end: int) -> None:
        """Take a stretch out of the prose."""
        if start > self.taken:
            self.pieces.append(self.text[self.taken : start])
        self.taken = max(self.taken, end)


def _clean(prose: str) -> str:
    """Return prose without wrapper tags and stray marks; empty if nothing is said in it."""
    prose = _TAG.sub("", prose).strip()
    return prose if prose.strip(" \n`~-_*>") else ""


_THOUGHTS = "(?:think|thinking|thought|thoughts|reasoning)"
_MARKS = re.compile(r"[ \n`~]*")
_SEPARATOR = re.compile(r"[\s,]*")
_REST = re.compile(r"[ \n`~]*\Z")
_CALL = re.compile(OPENING)
_THOUGHT = re.compile(rf"</{_THOUGHTS}>")
_PYTHON = re.compile(r"\[?[A-Za-z_][\w.]{0,200}\(")
_BACKTICKS = re.compile(r"^[ \t]{0,3}`{3,}+[ \t]*$", re.MULTILINE)
_TILDES = re.compile(r"^[ \t]{0,3}~{3,}+[ \t]*$", re.MULTILINE)
_CLOSERS = re.compile(r"\s*([}\]]*)")
_TAG = re.compile(
    rf"</?{NS}(?:{WRAPPERS}|invoke|function)>|<[|\uff5c][\w\u2581 /]{{1,40}}[|\uff5c]>|</s>|<end_of_turn>"
    r"|\[/?(?:TOOL_CALLS|ARGS)\]"
)
_LANGUAGE = re.compile(r"(?:json[5c]?|xml|text|plaintext|py(?:thon)?|tools?|tool_calls?|tool_code|function(?:_call)?)?")
"""What may stand behind an opening fence that holds a call."""
_CALLING = frozenset({"tool_call", "tool_calls", "tool_code", "function_call"})
"""What stands behind an opening fence that holds a call and nothing else."""
_FENCE_END = re.compile(r"\s*(?:`{3,}+|~{3,}+)[ \t]*(?=\n|\Z)")
"""The end of a fence shows that what stands in it is over."""
_KEYS = "tool_name|tool_args|thoughts|headline|tool_calls?|function_call"
_MORE_KEYS = "tool|actions|name|type|id|function|arguments"


def _key(names: str) -> str:
    """Return a pattern for an opening brace and a first key, in any quotes."""
    quote = r"(?:\\?[\"'\u201c\u201d])?"
    return rf"\{{\s{{0,20}}{quote}(?:{names}){quote}\s{{0,20}}[:\uff1a]"


NAMING = 1_000
"""How far into a broken object the name of a tool and the beginning of its arguments are looked for."""
_NAMING = re.compile(
    r"[\"'](?:name|tool|action|function|recipient_name)[\"']\s{0,20}:\s{0,20}[\"']([^\"'\n]{1,200})[\"']\s{0,20},"
    r"[^{\[]{0,200}?[\"'](?:arguments|args|parameters|input|tool_input|action_input)[\"']\s{0,20}:"
)
_ARRAY = re.compile(r"\[\s*\{")
_MEMBER = re.compile(r"[{,]\s*([\"'])[^\"'\n]{0,80}\1\s*:[\s\[]*\Z")
"""What stands before an object that is a member of another one: never a request of its own."""
_HEAD = re.compile(_key(_KEYS))
# Whether anything can begin here is asked first: that is far faster than trying all eight at every character.
_MARK = re.compile(
    r"(?:^|(?=[<\[`{]))(?:"
    r"(?P<fence>^[ \t]{0,3}(?:`{3,}+|~{3,}+)[^\n`]*$)"
    r"|(?P<quote>^[ \t]{0,3}>[^\n]*$)"
    rf"|(?P<think><{_THOUGHTS}>)|(?P<thought></{_THOUGHTS}>)"
    rf"|(?P<call>{OPENING})"
    r"|(?P<code>`+)"
    rf"|(?P<json>^[ \t]*\{{|(?={_key(f'{_KEYS}|{_MORE_KEYS}')})\{{)"
    r"|(?P<python>^[ \t]*\[?[A-Za-z_][\w.]{0,200}\())",
    re.MULTILINE,
)
