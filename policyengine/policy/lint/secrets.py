"""Secrets that were written into a policy file.

Knows: what well-known secrets look like, and which keys hold some. Must not know: what they open.

A finding never shows the value, and neither does the source line of any other finding.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator

from msgspec.structs import replace

from policyengine.policy.lint.subject import Subject
from policyengine.policy.nodes import Node, walk
from policyengine.policy.problems import Problem
from policyengine.policy.wording import KeyPath

_NO_PLACEHOLDER = r"(?![$<{%*.]|(?i:pass|passwd|password|secret|xxx+)@)"

KNOWN: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (name, re.compile(rf"(?<![A-Za-z0-9]){pattern}"))
    for name, pattern in (
        ("an API key (sk-...)", r"sk-(?=[A-Za-z_-]{0,200}[0-9])[A-Za-z0-9_-]{20,}"),
        ("a Stripe key", r"[rs]k_live_[A-Za-z0-9]{10,}"),
        ("a GitHub token", r"(?:gh[pousr]_[A-Za-z0-9]{36,}|github_pat_[A-Za-z0-9_]{40,})"),
        ("a GitLab token", r"glpat-[A-Za-z0-9_-]{20,}"),
        ("an AWS access key", r"(?:AKIA|ASIA)[0-9A-Z]{16}(?![0-9A-Z])"),
        ("a Slack token", r"(?:xox[abeoprs]|xapp)-(?=[A-Za-z-]{0,200}[0-9])[A-Za-z0-9-]{10,}"),
        ("an npm token", r"npm_[A-Za-z0-9]{30,}"),
        ("a Hugging Face token", r"hf_[A-Za-z0-9]{30,}"),
        ("a SendGrid key", r"SG\.[A-Za-z0-9_-]{16,}\.[A-Za-z0-9_-]{16,}"),
        ("a PyPI token", r"pypi-(?=[A-Za-z_-]{0,200}[0-9])[A-Za-z0-9_-]{30,}"),
        ("a Docker token", r"dckr_pat_[A-Za-z0-9_-]{20,}"),
        ("a Google API key", r"AIza[A-Za-z0-9_-]{35}"),
        ("a Google access token", r"ya29\.[A-Za-z0-9_-]{20,}"),
        ("an Azure account key", r"AccountKey=[A-Za-z0-9+/]{40,}={0,2}"),
        (
            "a password in a URL",
            rf"[A-Za-z][A-Za-z0-9+.-]{{0,20}}://[^\s/:@]{{0,100}}:{_NO_PLACEHOLDER}[^\s/@]{{3,200}}@",
        ),
        ("a private key", r"-----BEGIN [A-Z ]*PRIVATE KEY-----"),
        ("a JSON Web Token", r"eyJ[A-Za-z0-9_-]{8,4000}\.eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}"),
    )
)
"""What a secret is called, and what it looks like."""

_KEY = re.compile(r"(?:\A|[_-])(?:token|secret|password|passwd|api[_-]?key|private[_-]?key|access[_-]?key)\Z", re.I)
_SHORTEST = 12
_LEAST_BITS = 3.0
"""How much a text must vary, in bits a character: words and placeholders mostly vary less, or have no digit."""

HIDDEN = "(secret)"
"""What stands in the place of a secret."""

KEY_ADVICE = "a key has no place for a secret, not even a variable; whoever could read the file may know it"
ADVICE = "put it into the environment and write `{$env: NAME}` here; whoever could read the file may know it"


def known_secrets(subject: Subject) -> Iterator[Problem]:
    """L651: a value has the shape of a well-known secret."""
    for path, node in _values(subject):
        name = _known(str(node.data))
        if name is not None:
            yield _finding(subject, "L651", f"the value looks like {name}", path, node)
    for path, node in _keys(subject):
        name = _known(str(path[-1]))
        if name is not None:
            found = subject.sources.at_key("L651", f"the key looks like {name}", node, path, help=KEY_ADVICE)
            yield replace(found, severity="warning", source_line="")


def likely_secrets(subject: Subject) -> Iterator[Problem]:
    """L652: a setting that is called a token, a secret or a password holds what looks random."""
    for path, node in _values(subject):
        if _known(str(node.data)) is None and _random(path, node):
            yield _finding(subject, "L652", "the value looks like a secret, as the key says", path, node)


def veiled(subject: Subject, found: Iterable[Problem]) -> Iterator[Problem]:
    """Yield the findings without secrets: not in their texts and paths, and without the source lines that have one."""
    held = [(path, node) for path, node in _values(subject) if _known(str(node.data)) or _random(path, node)]
    lines = {(node.at.file, node.at.line) for _, node in held}
    random = sorted({str(node.data) for path, node in held if _random(path, node)}, key=len, reverse=True)
    for problem in found:
        hidden = (problem.position.file, problem.position.line) in lines or _known(problem.source_line)
        texts = {name: _without(getattr(problem, name), random) for name in ("path", "message", "help", "note")}
        yield replace(problem, source_line="" if hidden else problem.source_line, **texts)


def _without(text: str, random: Iterable[str]) -> str:
    for _, pattern in KNOWN:
        text = pattern.sub(HIDDEN, text)
    for secret in random:
        text = text.replace(secret, HIDDEN)
    return text


def _values(subject: Subject) -> Iterator[tuple[KeyPath, Node]]:
    """Yield every text of every file, also what a higher layer replaces."""
    for layer in subject.layers:
        for path, node in walk(layer.root):
            if node.children is None and isinstance(node.data, str):
                yield path, node


def _keys(subject: Subject) -> Iterator[tuple[KeyPath, Node]]:
    """Yield every entry of every mapping of every file: names of rules, tools and models are texts, too."""
    for layer in subject.layers:
        for path, node in walk(layer.root):
            if path and isinstance(path[-1], str):
                yield path, node


def _known(text: str) -> str | None:
    return next((name for name, pattern in KNOWN if pattern.search(text)), None)


def _random(path: KeyPath, node: Node) -> bool:
    key = next((part for part in reversed(path) if isinstance(part, str) and part != "default"), "")
    text = str(node.data)
    if key == "$env" or not _KEY.search(key) or len(text) < _SHORTEST or re.search(r"\s", text):
        return False
    if not (re.search(r"[0-9]", text) and re.search(r"[A-Za-z]", text)):
        return False
    counts = Counter(text).values()
    return -sum(count / len(text) * math.log2(count / len(text)) for count in counts) >= _LEAST_BITS


def _finding(subject: Subject, code: str, message: str, path: KeyPath, node: Node) -> Problem:
    return replace(subject.finding(code, message, path, node=node, help=ADVICE), source_line="")
