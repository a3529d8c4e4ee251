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
    if any(tools.registered(_plain_name(match.group(1))) for match in _NAMED_OBJECT.finditer(text)):
        return True
    called = (_CALLED.match(text), _CALLING_OUT.match(text) if text.rstrip().endswith((")", "}", "]")) else None)
    if any(match is not None and tools.registered(match.group(1)) for match in called):
        return True
    if any(tools.registered(match.group(1)) for notation in (_ACTION, _TO) for match in notation.finditer(text)):
        return True
    text = _INLINE.sub(" ", text)
    return any(_names_tool(match, text, tools) for match in _TAG.finditer(text))


def unknown_shape(text: str, tools: Tools) -> bool:
    """Return whether a text is JSON (in a fence or control tokens) that names an offered tool with its arguments.

    A text that begins with a tool's name and a control token of calls counts as well.
    """
    if not tools.names:
        return False
    whole = _OPENING.sub("", text.strip())[:NEAR].lstrip()
    named = _BEFORE_TOKEN.match(whole)
    if named is not None and tools.registered(named.group(1)):
        return True
    keyed = _KEYED.match(whole)
    if keyed is not None and keyed.group(2) in (tools.properties(keyed.group(1)) or ()):
        return True
    return whole[:1] in ("{", "[") and any(
        tools.registered(_plain_name(match.group(1))) for match in _NAMED_MEMBER.finditer(whole)
    )


def _plain_name(name: str) -> str:
    return name.removeprefix("functions.")


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


NEAR = 2_000
"""How far into a JSON text the name of a tool is looked for."""
_NAME = r"\s{0,20}:\s{0,20}[\"']([\w.:/-]{1,200})[\"']\s{0,20}\}?\s{0,20},"
_ARGUMENTS = (
    r"[\"'](?:arguments|args|parameters|input|kwargs|(?:tool|action|function)_(?:input|args|arguments))[\"']\s{0,20}:"
    r"(?!\s{0,20}\{\s{0,20}[\"'](?:type[\"']\s{0,20}:\s{0,20}[\"']object|properties|\$schema)[\"'])"
)
"""A member with arguments, and not with the declaration of some."""
_NAMED_MEMBER = re.compile(
    rf"[\"'](?:name|tool|tool_name|action|command|function|recipient_name)[\"']{_NAME}[^{{}}\[\]]{{0,200}}?{_ARGUMENTS}"
)
_NAMED_OBJECT = re.compile(
    rf"[\"'](?:action|recipient_name|tool_name)[\"']{_NAME}\s{{0,20}}[\"'](?:action_input|parameters)[\"']\s{{0,20}}:"
)
_KEYED = re.compile(
    r"[\[\s]{0,20}\{\s{0,20}[\"']([\w.:/-]{1,200})[\"']\s{0,20}:\s{0,20}\{\s{0,20}[\"']([\w-]{1,200})[\"']"
)
_OPENING = re.compile(r"\A(?:```[\w-]{0,20}|(?:<[|\uff5c][^<>\n]{1,40}[|\uff5c]>\s{0,20}){1,4})")
_CALLED = re.compile(r"\s{0,20}(?:(?:functions|default_api|tools)\.)?([\w-]{1,200})\s{0,20}[{(]\s{0,20}[\"'{}]")
_CALLING_OUT = re.compile(
    r"\s{0,20}(?:>>>\s?|[@/]|call\s{1,5}|print\(|(?:use|call|invoke|run|execute)_(?:tool|function)\([\"'])"
    r"(?:(?:functions|default_api|tools)\.)?([\w-]{1,200})\s{0,20}[{(\"']",
    re.IGNORECASE,
)
"""A whole text that calls out a name in front of arguments."""
_ACTION = re.compile(
    r"^[ \t]*(?:Action|Tool):[ \t]*[\"'`]?([\w.:-]{1,200})[\"'`]?[ \t]*"
    r"(?:\n\s{0,20}(?:(?:Action|Tool) )?(?:Input|Arguments|Parameters):|[\[(])",
    re.MULTILINE,
)
_BEFORE_TOKEN = re.compile("(?:functions\\.)?([\\w-]{1,200})(?::[0-9]{1,6})?\\s{0,5}<[|\uff5c]tool[_\u2581]")
_TO = re.compile(r"(?:\bto=|\bcall:\s?)(?:functions\.)?([\w-]{1,200})\s{0,5}(?:json|code)?\s{0,5}[{(<]", re.IGNORECASE)
_INLINE = re.compile(r"(?<!`)(`{1,2})(?!`)[^`\n]{1,300}(?<!`)\1(?!`)")
_ATTRIBUTE = re.compile(r"([\w-]{1,100})\s?=")
_TAG = re.compile("<[|\uff5c]{0,2}([A-Za-z][\\w.:\u2581-]{0,80})([^<>\n]{0,300})>")
_CHILD = re.compile(r"\s{0,20}<([\w.-]{1,100})>")
_CALLING = re.compile(r"tool|function|call|invoke|action|execute", re.IGNORECASE)
_WORD = re.compile(r"[\s\[({\"']{0,20}([\w.:-]{1,200})")
_WORDS = re.compile(r"[\w.:-]{1,200}")
