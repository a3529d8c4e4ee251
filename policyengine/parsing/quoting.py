"""Whether something in a text is said or only shown: quotes, examples, offers.

Knows: how people and models mark an example. Must not know: notations of calls.

A wrong guess in one direction asks the model once more; in the other it runs an action that was only mentioned. So
every doubt counts as an illustration.
"""

from __future__ import annotations

import re

NEAR = 600
"""How many characters before a call are looked at."""


def is_illustration(text: str, start: int, end: int, since: int = 0) -> bool:
    """Return whether what stands from `start` to `end` is quoted, an example, or only offered.

    Looked at are the last sentences before it, not further back than `since`, and the first line after it.
    """
    before, after = text[max(since, start - NEAR) : start], text[end : end + NEAR]
    if not before and not after:
        return False
    if before and after and before[-1] in _QUOTES and after[0] in _QUOTES:
        return True
    line_before, line_after = _TURN_TOKEN.sub("\n", before).rpartition("\n")[2], _first_line(after)
    if _is_inside_quotation(before) or (line_before.lstrip().startswith("|") and "|" in line_after):
        return True
    if _WORDS.search(_MARK.sub(" ", line_before)) and _WORDS.search(_MARK.sub(" ", line_after)):
        return True
    said = _sentences(before)
    if any(map(_EXAMPLE.search, said[-2:])) or any(map(_EXAMPLE_ELSEWHERE.search, said[-2:])):
        return True
    if any(map(_DOUBT.search, said[-1:])) or any(map(_DOUBT_ELSEWHERE.search, said[-1:])):
        return True
    if said and _leads_on(before) and _REPORTED.search(said[-1]) and not _INTENT.search(said[-1]):
        return True
    return _AFTERWARDS.search(_first_line(after.lstrip(" \n`~"))) is not None


def _leads_on(before: str) -> bool:
    """Return whether the last sentence is not over yet: it ends in a colon, or the line goes on."""
    said = before.rstrip(_SPACES)
    return said.endswith((":", "\uff1a")) or "\n" not in before[len(said) :]


def _is_inside_quotation(before: str) -> bool:
    """Return whether a comment, an element that holds results or quotations, or escaped markup is still open."""
    if before.rfind("<!--") > before.rfind("-->") or before.rstrip().endswith("&gt;"):
        return True
    marks = _QUOTING.findall(before)
    return bool(marks) and not marks[-1]


def starts_anew(text: str) -> bool:
    """Return whether a sentence ends or a paragraph begins in a text, and something is said in it."""
    return _WORDS.search(text) is not None and _BREAK.search(text) is not None


def _sentences(text: str) -> list[str]:
    """Return the sentences and lines of a text that have words, without what is quoted in them."""
    return [part for part in _END.split(_CITED.sub(" ", text)) if _WORDS.search(part)]


def _first_line(text: str) -> str:
    return text.partition("\n")[0]


IMAGINED = re.compile(
    r"^[ \t]*(?:(?:Observation|Human|User|Environment)[ \t]*:|(?:user|assistant|system|tool)[ \t]*$"
    r"|<[|]?(?:im_start|start_of_turn|user|(?:tool|function)_(?:response|result|output)s?|observation)[|]?>)",
    re.MULTILINE,
)
"""A line that opens another speaker's turn: what follows was made up by the model."""
_TURN_TOKEN = re.compile(r"<[|](?:start|end|im_start|im_end|eot_id)[|]>(?:assistant)?")
_SPACES = " \t\r\n`~"
_QUOTES = "`\"'\u201c\u201d\u2018\u2019\u00ab\u00bb\u300c\u300d"
_MARK = re.compile(r"<[^<>\n]{0,100}>|\[[A-Z_]{1,40}\]")
"""A tag is part of a notation and not of what is said on a line."""
_WORDS = re.compile(r"[^\W\d_]{2}")
_END = re.compile(r"[.!?\u3002](?=\s)|\n")
_BREAK = re.compile(r"[.!?\u3002](?=\s)|\n[ \t]*\n")
_CITED = re.compile(r"\"[^\"]{1,400}\"|\u201c[^\u201c\u201d]{1,400}\u201d")
_QUOTING = re.compile(
    r"<(/?)(?:(?:tool|function)_(?:response|result|output)s?|observation|blockquote|documents?|examples?|pre|code"
    r"|transcript|logs?)(?:\s[^<>\n]{0,100})?>",
    re.IGNORECASE,
)
"""Elements that hold what somebody else said."""
_EXAMPLE = re.compile(
    r"\bfor (?:example|instance)\b|\be\.\s?g\.|\bsuch as\b|\bexamples?\b|\bsomething like\b|\blooks? like\b"
    r"|\bif you(?:'d|\u2019d| would)? (?:like|want|prefer|wish)\b"
    r"|\b(?:would you like|do you want|want me to|shall i|should i|may i|can i)\b"
    r"|\b(?:(?:wait|waiting|ask|asking) for|need your|pending) (?:your |the |an? )?(?:approval|confirmation"
    r"|permission)\b"
    r"|\b(?:after|once|when|if) you (?:confirm|approve|agree)\b"
    r"|\bplease (?:let me know|tell me|specify|provide|confirm)\b"
    r"|\b(?:hypothetical|imagine|suppose|pretend|illustrat\w*|placeholder)\b",
    re.IGNORECASE,
)
"""In the last two sentences before a call: it is an example, or only offered."""
_EXAMPLE_ELSEWHERE = re.compile(
    r"\b(?:beispiel(?:e|s|aufrufe?|haft\w*|sweise)?|par exemple|exemples?|bijvoorbeeld|voorbeeld(?:en)?)\b"
    r"|\b(?:por (?:ejemplo|exemplo)|ejemplos?|exemplos?|(?:ad|per) esempio|esempi[oi]?)\b|\bz\. ?b\."
    r"|\b(?:na przyk\u0142ad|przyk\u0142ad\w*|\u00f6rne(?:\u011fin|k))\b"
    r"|\b(?:\u043d\u0430)?\u043f\u0440\u0438\u043c\u0435\u0440(?:\u044b|\u0430|\u043e\u043c)?\b"
    r"|\b(?:soll|darf) ich\b|\bm\u00f6chtest du\b|\bm\u00f6chten sie\b|\b(?:dois-je|puis-je|voulez-vous|veux-tu)\b"
    r"|\u00bf(?:debo|puedo|quieres|desea)\b|\u8981\u4e0d\u8981|\u3067\u3057\u3087\u3046\u304b"
    r"|\u4f8b\u5982|\u6bd4\u5982|\u793a\u4f8b|\u683c\u5f0f|\u4f8b\u5b50|\u4e3e\u4f8b|\u8303\u4f8b"
    r"|\u4f8b\u3048\u3070|\u305f\u3068\u3048\u3070|\u4f8b[\uff1a:]|\uc608\ub97c \ub4e4\uc5b4|\uc608\uc2dc",
    re.IGNORECASE,
)
"""The same in other languages."""
_DOUBT = re.compile(
    r"\byou (?:can|could|may|might|would|should)\b|\b(?:i|we|one) (?:could|might|would)\b"
    r"|\b(?:format|syntax|template|notation|schema)\b"
    r"|\b(?:do not|don't|don\u2019t|never|instead of|rather than|won't|will not|not going to)\b",
    re.IGNORECASE,
)
"""In the last sentence before a call: whether it is meant is in doubt."""
_REPORTED = re.compile(
    r"\b(?:says?|reads?|contain(?:s|ed)?|show(?:s|ed)?|like|form|be)(?: this| so| the following| it)?\s*:\s*\Z"
    r"|\b(?:said|wrote|pasted|quoted|emitted|printed|returned|logged|replied|was|were|parse)"
    r"(?: this| so| the following| it)?\s*:?\s*\Z"
    r"|\b(?:(?:i|we|you|they|he|she|it)(?:'ve|\u2019ve)?|which|that|already)(?: ha[ds]| have)?(?: already| just"
    r"| once)?"
    r" (?:ran|sent|called|tried|issued|executed|found|saw)(?: (?:this|it|the following)| in the \w+)?\s*:?\s*\Z"
    r"|^\W{0,20}(?:an? |the )?(?:expected|previous|earlier|old|original|sample)\b[^,;:\n]{0,40}:\s*\Z"
    r"|^\W{0,20}(?:an? |the )?(?:wrong|invalid|incorrect|malformed|rejected)\b[^,;:\n]{0,40}:\s*\Z",
    re.IGNORECASE,
)
"""At the end of the last sentence before a call: somebody else said it, or it was said before."""
_INTENT = re.compile(
    r"\b(?:let me|let's|let\u2019s|i'll|i\u2019ll|i will|i'm going to|i am going to|now i)\b", re.IGNORECASE
)
_DOUBT_ELSEWHERE = re.compile(
    r"\bnicht (?:ausf\w+|senden|aufrufen|verwenden|so)\b|\bniemals\b|\b(?:an)?statt\b|\bne (?:pas|jamais)\b"
    r"|\bau lieu de\b|\bno (?:ejecut|env|llam|us)\w*|\bnunca\b|\ben lugar de\b"
    r"|\b\u043d\u0435 (?:\u0432\u044b\u043f\u043e\u043b\u043d\u044f|\u0437\u0430\u043f\u0443\u0441\u043a\u0430"
    r"|\u043e\u0442\u043f\u0440\u0430\u0432\u043b\u044f|\u0432\u044b\u0437\u044b\u0432\u0430)\w*"
    r"|\u4e0d\u8981|\u8bf7\u52ff|\u5207\u52ff|\u3057\u306a\u3044\u3067"
    r"|(?:\u8bf4|\u5199\u9053|\u8fd4\u56de|\u663e\u793a|\u8f93\u51fa)\u4e86?[\uff1a:]\s*\Z",
    re.IGNORECASE,
)
"""The same in other languages."""
_AFTERWARDS = re.compile(
    r"\b(?:is|was|would be|as) (?:an |just an |only an |the )?(?:example|illustration|format|syntax)\b"
    r"|^(?:is|would|could|might|was|which)\b|\bfor (?:example|instance)\b"
    r"|^(?:shall|should|may|can) (?:i|we)\b|^(?:do you want|want me to|soll ich|darf ich|dois-je|puis-je)\b"
    r"|\b(?:this|that|which) is (?:what|how) (?:i|we|you|one|it) (?:would|could|might)\b",
    re.IGNORECASE,
)
