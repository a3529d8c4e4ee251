"""Markup that is clearly a call, in a notation nobody here can read.

Knows: tags that name an offered tool. Must not know: how any notation is read.

Such text must be neither run nor shown to the user as a final answer.
"""

from __future__ import annotations

import re

from policyengine.parsing.names import Tools


def unknown_markup(text: str, tools: Tools) -> bool:
    """Return whether a text holds a tag that names an offered tool, or a ReAct step or a bare call that does."""
    if not tools.names:
        return False
    named = _CALLED.match(text)
    if named is not None and tools.registered(named.group(1)):
        return True
    if any(tools.registered(match.group(1)) for notation in (_ACTION, _TO) for match in notation.finditer(text)):
        return True
    return any(_names_tool(match, text, tools) for match in _TAG.finditer(text))


def _names_tool(tag: re.Match[str], text: str, tools: Tools) -> bool:
    name, rest = tag.group(1), tag.group(2)
    if tools.registered(name):
        # A tag that is called like a tool is a call if a child or attribute is called like one of its arguments.
        declared = tools.properties(name) or ()
        child = _CHILD.match(text, tag.end())
        return any(key in declared for key in (child.group(1) if child else "", *_ATTRIBUTE.findall(rest)))
    if _CALLING.search(name) is None:
        return False
    following = _WORD.match(text, tag.end())
    words = [*_WORDS.findall(rest), *([following.group(1)] if following else ())]
    return any(map(tools.registered, words)) or tools.registered(name.rpartition(":")[2])


_CALLED = re.compile(r"\s{0,20}(?:(?:functions|default_api|tools)\.)?([\w-]{1,200})\s{0,20}[{(]\s{0,20}[\"'{}]")
_ACTION = re.compile(r"^[ \t]*Action:[ \t]*[\"'`]?([\w.:-]{1,200})[\"'`]?[ \t]*\n\s{0,20}Action Input:", re.MULTILINE)
_TO = re.compile(r"(?:\bto=|\bcall:\s?)(?:functions\.)?([\w-]{1,200})\s{0,5}(?:json|code)?\s{0,5}[{(<]", re.IGNORECASE)
_ATTRIBUTE = re.compile(r"([\w-]{1,100})\s?=")
_TAG = re.compile("<[|\uff5c]{0,2}([A-Za-z][\\w.:\u2581-]{0,80})([^<>\n]{0,300})>")
_CHILD = re.compile(r"\s{0,20}<([\w.-]{1,100})>")
_CALLING = re.compile(r"tool|function|call|invoke|action|execute", re.IGNORECASE)
_WORD = re.compile(r"\s{0,20}([\w.:-]{1,200})")
_WORDS = re.compile(r"[\w.:-]{1,200}")
