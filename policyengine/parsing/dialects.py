"""Calls written as text in other systems' notations.

Knows: where a call in each notation begins, and how it is read. Must not know: what stands around it, who may run it.

Notations (all with or without a wrapper around several calls):

* `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, also with an array, with the name before the object, or
  with `<arg_key>`/`<arg_value>` pairs;
* `<function=NAME>{...}</function>` and `<function=NAME><parameter=K>V</parameter></function>`, also with the opening
  tag left open;
* `<invoke name="NAME"><parameter name="K">V</parameter></invoke>`, also with a namespace or in DSML bars;
* `[TOOL_CALLS] [{...}]` and `[TOOL_CALLS]NAME[ARGS]{...}`;
* control tokens around name and object (`<|tool_call_begin|>`).

The end of a JSON object is found by its own structure, never by the first closing tag.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from policyengine.parsing.found import Found, Reading, Terms, Unread
from policyengine.parsing.names import resolve
from policyengine.parsing.objects import object_at
from policyengine.parsing.parameters import parameters_at
from policyengine.parsing.pycalls import read_python
from policyengine.parsing.shapes import ShapeError, request
from policyengine.parsing.strict import StrictError

NS = r"(?:[A-Za-z][\w.-]{0,30}:|[\uff5c\u2016|]{1,2}\s?DSML\s?[\uff5c\u2016|]{1,2}\s?)?"
"""What may stand before the name of a tag: an XML namespace, or DSML in bars of any kind."""

BAR = "[|\uff5c]"
WRAPPERS = "tool_calls?|toolcalls?|function_calls?|functioncalls?|tool_use|tool_code"

OPENING = (
    r"<function(?=\s?[=(])"
    rf"|<{NS}(?:{WRAPPERS})(?:\s[^<>\n]{{0,100}})?>"
    rf"|<{NS}invoke\s"
    r"|\[TOOL_CALLS\]"
    rf"|<{BAR}(?:tool[_\u2581 ]?calls?(?:[_\u2581]section)?(?:[_\u2581](?:begin|start))?|python_tag){BAR}>"
    rf"|<{BAR}channel{BAR}>[^<\n]{{0,40}}\bto="
)
"""Where a call in one of these notations may begin."""


def read_call(text: str, at: int, terms: Terms) -> Reading:
    """Return what begins at `at`, where `OPENING` matches.

    An empty list stands for a wrapper: the calls in it follow.
    """
    for opening, reader in _READERS:
        match = opening.match(text, at)
        if match is not None:
            try:
                return reader(text, match, terms)
            except StrictError as error:
                return Unread(at, len(text), error.reason, "markup")
            except ShapeError as error:
                return Unread(at, match.end(), error.reason, "markup")
    return None


def made(start: int, end: int, name: str, args: dict[str, Any], repairs: tuple[str, ...], terms: Terms) -> Found:
    """Return a call in markup, its name resolved."""
    known = resolve(name, terms.tools, args) if terms.mending else resolve_exactly(name, terms)
    return Found(start, end, known.text, args, (*repairs, *known.repairs), "markup", known.legal)


def resolve_exactly(name: str, terms: Terms) -> Any:
    """Return a name as it was written."""
    found = resolve(name, terms.tools)
    return found._replace(text=name, repairs=()) if found.repairs else found


# ---- <tool_call>


def _tool_call(text: str, opened: re.Match[str], terms: Terms) -> Reading:
    at = _after_fence(text, opened.end())
    if at >= len(text):
        return Unread(opened.start(), at, "truncated", "markup")
    if text[at] in "{[" and _PYTHON.match(text, at) is None:
        return _objects(text, opened.start(), at, terms)
    if _INNER.match(text, at):
        return []
    named = _NAMED.match(text, at)
    if named is not None and (terms.tools.has(named.group(1)) or named.group(2)[:1] == "<"):
        if named.group(2) == "{":
            part = object_at(text, named.end() - 1, terms, _CLOSING)
            return _single(text, opened.start(), named.group(1), part, terms)
        return _pairs(text, opened.start(), named, terms)
    if named is None and _PYTHON.match(text, at):
        return _python(text, opened.start(), at, terms)
    closing = _CLOSES.search(text, at, at + FAR)
    return None if closing is None else Unread(opened.start(), closing.end(), "markup", "markup")


def _objects(text: str, start: int, at: int, terms: Terms) -> Reading:
    """Read request objects one after another, or an array of them."""
    calls: list[Found] = []
    while text[at : at + 1] in ("{", "["):
        part = object_at(text, at, terms, _CLOSING)
        values = part.value if isinstance(part.value, list) else [part.value]
        for value in values:
            shape = request(value, terms.tools, aliases=True, repairing=terms.mending)
            calls.append(made(start, part.end, shape.name, shape.args, (*part.repairs, *shape.repairs), terms))
        start = at = _after_spaces(text, part.end)
    if not calls:
        return Unread(start, at, "no_call", "markup")
    calls[-1] = _closed(text, calls[-1], terms, tagged=text[calls[0].start] == "<")
    return calls


def _single(text: str, start: int, name: str, part: Any, terms: Terms, repairs: tuple[str, ...] = ()) -> Reading:
    if not isinstance(part.value, dict):
        return Unread(start, part.end, "arguments_not_object", "markup")
    call = made(start, part.end, name, part.value, (*repairs, *part.repairs), terms)
    return [_closed(text, call, terms)]


def _closed(text: str, call: Found, terms: Terms, *, tagged: bool = True) -> Found:
    """Take in what closes a call: stray brackets and the closing tag, whole, cut off or missing.

    Notations without tags (`tagged` is false) need no closing.
    """
    stray = (_STRAY if terms.mending else _STRAY_ANGLE).match(text, call.end)
    end = stray.end() if stray else call.end
    repairs: tuple[str, ...] = ("extra_closer",) if text[call.end : end].strip() else ()
    closing = _CLOSING.match(text, end) or _CUT_CLOSING.match(text, end)
    if closing is None and tagged and terms.ended:
        closing = _REOPENED.match(text, end)
    if closing is None:
        repairs += ("missing_closing_tag",) if tagged else ()
        return call._replace(end=end, repairs=(*call.repairs, *repairs))
    if closing.re is not _CLOSING:
        repairs += ("missing_closing_tag",)
    return call._replace(end=closing.end(), repairs=(*call.repairs, *repairs))


def _pairs(text: str, start: int, named: re.Match[str], terms: Terms) -> Reading:
    """Read `<arg_key>K</arg_key><arg_value>V</arg_value>` pairs after a name."""
    return _typed(text, start, named.end() - len(named.group(2)), named.group(1), terms)


def _typed(text: str, start: int, at: int, name: str, terms: Terms, repairs: tuple[str, ...] = ()) -> Reading:
    """Read parameters as tags, up to the closing tag."""
    known = resolve(name, terms.tools) if terms.mending else resolve_exactly(name, terms)
    args, end, typed = parameters_at(text, at, terms.tools.properties(known.text) or {})
    if not args and not _CLOSING.match(text, end):
        return Unread(start, end, "truncated" if text.find(">", end) < 0 else "markup", "markup")
    if not args and terms.tools.required(known.text):
        return Unread(start, end, "arguments_missing", "markup")
    call = made(start, end, name, args, (*repairs, *typed), terms)
    closed = _closed(text, call, terms)
    at_end = _SPACES_LEFT.match(text, closed.end) is not None
    if "missing_closing_tag" in closed.repairs and not (at_end and terms.ended):
        # Another parameter may have followed: only a closing tag or the end of the message says that this is all.
        return Unread(start, closed.end, "truncated" if at_end else "markup", "markup")
    following = _ORPHAN.search(text, closed.end)
    if following is not None and following.group(1):
        # What looked like the end of a value was part of it.
        return Unread(start, following.end(), "markup", "markup")
    return [closed]


# ---- <function=NAME> and <invoke name="NAME">


def _function(text: str, opened: re.Match[str], terms: Terms) -> Reading:
    header = _FUNCTION.match(text, opened.start())
    if header is None:
        cut = _HEADER_LEFT.match(text, opened.end())
        return Unread(opened.start(), len(text), "truncated", "markup") if cut else None
    return _body(text, header, header.group(1), terms, _odd_header(header.group()))


def _odd_header(header: str) -> tuple[str, ...]:
    return () if re.fullmatch(r"<function=[^\s<>]+>\s*", header) else ("function_tag_header",)


def _invoke(text: str, opened: re.Match[str], terms: Terms) -> Reading:
    header = _INVOKE.match(text, opened.start())
    if header is None:
        return Unread(opened.start(), opened.end(), "markup", "markup")
    repairs = ("dsml_markup",) if "DSML" in header.group() else ()
    return _body(text, header, header.group(1), terms, repairs)


def _body(text: str, header: re.Match[str], name: str, terms: Terms, repairs: tuple[str, ...]) -> Reading:
    start, at = header.start(), header.end()
    if at >= len(text):
        return Unread(start, at, "truncated", "markup")
    if text[at] == "{" or text.startswith('"{', at):
        part = object_at(text, at, terms, _CLOSING)
        return _single(text, start, name, part, terms, repairs)
    if _PARAMETER_TAG.match(text, at) or _CLOSING.match(text, at):
        return _typed(text, start, at, name, terms, repairs)
    if terms.tools.registered(name) or _CLOSES.search(text, at, at + FAR):
        return Unread(start, at, "markup", "markup")
    return None


# ---- tokens


def _tool_calls_token(text: str, opened: re.Match[str], terms: Terms) -> Reading:
    at = _after_spaces(text, opened.end())
    if text[at : at + 1] in ("[", "{"):
        return _objects(text, opened.start(), at, terms)
    return _tokens(text, opened, terms)


def _tokens(text: str, opened: re.Match[str], terms: Terms) -> Reading:
    """Read `NAME`, control tokens, `{...}`."""
    at = _after_fence(text, opened.end())
    if at >= len(text):
        return Unread(opened.start(), at, "truncated", "markup")
    if text[at] in "{[" and _PYTHON.match(text, at) is None:
        return _objects(text, opened.start(), at, terms)
    if _INNER.match(text, at):
        return []
    if _PYTHON.match(text, at):
        return _python(text, opened.start(), at, terms)
    header = _TOKEN_HEADER.match(text, at)
    if header is None:
        return Unread(opened.start(), opened.end(), "markup", "markup")
    part = object_at(text, header.end() - 1, terms, _CLOSING)
    if not isinstance(part.value, dict):
        return Unread(opened.start(), part.end, "arguments_not_object", "markup")
    call = made(opened.start(), part.end, header.group(1), part.value, part.repairs, terms)
    closing = _TOKEN_CLOSING.match(text, call.end)
    return [call._replace(end=closing.end()) if closing else call]


def _channel(text: str, opened: re.Match[str], _: Terms) -> Reading:
    return Unread(opened.start(), opened.end(), "markup", "markup")


# ---- small steps


def _after_spaces(text: str, at: int) -> int:
    match = _SPACES.match(text, at)
    return match.end() if match else at


def _after_fence(text: str, at: int) -> int:
    at = _after_spaces(text, at)
    match = _FENCE.match(text, at)
    return match.end() if match else at


def _python(text: str, start: int, at: int, terms: Terms) -> Reading:
    """Read calls written as Python inside a wrapper."""
    reading = read_python(text, at, terms)
    if not isinstance(reading, list):
        return reading or Unread(start, at, "markup", "markup")
    closed = _closed(text, reading[-1], terms)
    return [call._replace(start=start, end=closed.end, notation="markup") for call in reading]


FAR = 2_000
"""How far a closing tag is looked for."""

_SPACES_LEFT = re.compile(r"\s*\Z")
_HEADER_LEFT = re.compile(r"[\s=(\"']*\Z")
_SPACES = re.compile(r"[\s,]*")
_FENCE = re.compile(r"```[\w-]{0,20}\s*")
_CLOSING_TAG = (
    rf"(?:</{NS}(?:{WRAPPERS}|function|invoke)>|<{BAR}/?(?:tool[_\u2581 ]?calls?(?:[_\u2581]\w{{1,20}})?|call){BAR}>)"
)
_CLOSING = re.compile(rf"\s*(?:```\s*)?{_CLOSING_TAG}")
_CLOSES = re.compile(_CLOSING_TAG)
_CUT_CLOSING = re.compile(r"\s*<(?:/[a-z_]{0,20})?\Z")
_ORPHAN = re.compile(rf"(</{NS}parameter>|</arg_value>)|{OPENING}|<{NS}parameter[\s=]|<arg_key>")
"""The next closing tag of a parameter, if no tag is opened before it."""
_REOPENED = re.compile(rf"\s*<{NS}(?:{WRAPPERS}|function|invoke)>\s*\Z")
"""An opening tag in the place of the closing one, where the model ended its message with it."""
_STRAY = re.compile(r"[\s}\]]*(?:/?>)?")
_STRAY_ANGLE = re.compile(r"\s*(?:/?>)?")
_INNER = re.compile(rf"<function\s?[=(]|<{NS}invoke\s|<{NS}(?:{WRAPPERS})>|<{BAR}tool[_\u2581]call")
_NAMED = re.compile(r"([A-Za-z_][\w.:-]{0,200})\s*(\{|<arg_key>)")
_PYTHON = re.compile(r"\[?\s*([A-Za-z_][\w.]{0,200})\(")
_FUNCTION = re.compile(r"<function\s?[=(]\s*[\"']?([^\s\"'<>(){}\[\]=,]{1,200})[\s\"'):=>]*")
_INVOKE = re.compile(rf"<{NS}invoke\s+name\s*=\s*[\"']?([^\"'<>\n]{{1,200}})[\"']?[^<>\n]{{0,200}}>\s*")
_PARAMETER_TAG = re.compile(rf"<{NS}parameter[\s=]|<arg_key>")
_TOKEN_HEADER = re.compile(
    rf"(?:function\s*<{BAR}[^<>\n]{{1,40}}{BAR}>)?\s*([^\s<>{{}}\[\]|\uff5c]{{1,200}})\s*+"
    rf"(?:<{BAR}[^<>\n]{{1,40}}{BAR}>|\[CALL_ID\][\w-]{{0,80}}|\[ARGS\]|\s|```[a-z]{{0,10}})*+\{{"
)
_TOKEN_CLOSING = re.compile(rf"\s*+(?:```)?\s*+(?:<{BAR}[^<>\n]{{0,40}}end{BAR}>\s*+)+")

_READERS: tuple[tuple[re.Pattern[str], Callable[[str, re.Match[str], Terms], Reading]], ...] = (
    (re.compile(r"<function(?=\s?[=(])"), _function),
    (re.compile(rf"<{NS}(?:{WRAPPERS})(?:\s[^<>\n]{{0,100}})?>"), _tool_call),
    (re.compile(rf"<{NS}invoke\s"), _invoke),
    (re.compile(r"\[TOOL_CALLS\]"), _tool_calls_token),
    (re.compile(rf"<{BAR}channel{BAR}>[^<\n]{{0,40}}\bto="), _channel),
    (
        re.compile(
            rf"<{BAR}(?:tool[_\u2581 ]?calls?(?:[_\u2581]section)?(?:[_\u2581](?:begin|start))?|python_tag){BAR}>"
        ),
        _tokens,
    ),
)
