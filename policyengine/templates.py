"""Find, check and render the texts of messages by their kind.

Knows: where templates are looked for, and what a value may look like before it is put into a text.
Must not know: rules, decisions, who reads the text.

A template is `<language>/<kind>.txt`. It is looked for in the policy's own directories, in `policyengine.prompts`,
and in what extensions bring along; first in the policy's language, then in English. An installed extension thus adds
kinds but cannot reword ours; the policy can reword all. Everything outside the package is read when the object is
made, so that a file edited later changes nothing for runs under way.

Values come from tools and models. They are cut and put on one line first, so that they cannot imitate the structure
of the text around them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable
    from pathlib import Path

    import jinja2

FALLBACK_LANGUAGE = "en"
MAX_FILES = 1_000
MAX_FILE_BYTES = 64_000

_KIND = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")
_LANGUAGE = re.compile(r"[A-Za-z]{2,8}([-_][A-Za-z0-9]{1,8})*")
# Controls, line and paragraph separators and white space become one space; marks that only reorder or hide text go.
_BREAKS = re.compile(r"[\s\x00-\x1f\x7f-\x9f\u2028\u2029]+")
_HIDDEN = re.compile("[\u200b\u200e\u200f\u202a-\u202e\u2060-\u2069\ufeff]")
_LONE_SURROGATES = re.compile("[\ud800-\udfff]")
_MAX_NUMBER = 10**15


class Limits(msgspec.Struct, frozen=True):
    """Longest text, longest single value (both in characters), most items of a list or mapping."""

    text: int = 4_000
    value: int = 200
    items: int = 50


LIMITS: dict[str, Limits] = {
    "text_protocol": Limits(text=100_000, value=4_000, items=500),
    "unknown_tool": Limits(items=300),
    "call.missing_call": Limits(items=300),
    "call.wrong_function": Limits(items=300),
    "call.invalid_arguments": Limits(text=8_000, value=6_000),
    "call.repair": Limits(text=20_000, value=12_000),
    "invalid_arguments": Limits(text=8_000, value=6_000),
    "plan.snapshot": Limits(text=150_000, value=500),
    "plan.step_done_default": Limits(value=500),
    "plan.step_summary": Limits(value=500),
}
"""Kinds that list the tools on offer need more room than others."""

CORE_MESSAGES: dict[str, dict[str, Any]] = {
    "warning.misformat": {"reason": "unclosed_string", "protocol": "text", "forms": []},
    "warning.repeat": {"reason": "same_text", "protocol": "native", "forms": []},
    "warning.empty": {"reason": "", "protocol": "native", "forms": []},
    "warning.reasoning_only": {"reason": "", "protocol": "native", "forms": []},
    "warning.truncated": {"reason": "finish_reason", "protocol": "native", "forms": []},
    "recovered": {"protocol": "text", "forms": []},
    "text_protocol": {"tools": [{"name": "search", "description": "Search the catalogue."}], "forms": []},
    "peer.message": {"sender": "planner"},
    "compaction.request": {},
    "compaction.heading": {},
    "compaction.dropped": {},
    "unknown_tool": {"tool": "serach", "offered": ["search", "fetch"]},
    "call.missing_call": {"offered": ["search", "fetch"]},
    "call.wrong_function": {"tool": "serach", "offered": ["search", "fetch"]},
    "call.invalid_arguments": {"tool": "search", "problem": "query: is missing."},
    "call.truncated": {"offered": ["search"]},
    "call.repair": {"tool": "search", "problem": "query: is missing.", "arguments": "{}"},
    "invalid_arguments": {"tool": "search", "problem": "query: is missing."},
    "tool_timeout": {"tool": "search", "limit": 10},
    "denied": {"tool": "search", "rule": "house_rules"},
    "not_run": {"tool": "search", "rule": "stall_detector", "alone": False},
    "ask.wait": {"tool": "pay_invoice", "rule": "spend_review"},
    "ask.unknown_outcome": {"tools": ["pay_invoice"]},
    "unknown_outcome": {"tool": "pay_invoice"},
    "cancelled": {"tool": "search"},
    "interrupted": {"tool": "search"},
    "wind_down.refuse": {"tool": "search"},
    "interventions.stop": {"observed": 11, "limit": 10},
    "interventions.hand_over": {"observed": 11, "limit": 10},
    "extension_error.deny": {"tool": "search", "rule": "spend_review"},
    "extension_error.stop": {"rule": "spend_review", "observed": 3, "limit": 3},
    "plan.snapshot": {
        "steps": [
            {"id": "look", "state": "done", "depends_on": [], "description": "Find the invoice.", "reason": ""},
            {"id": "pay", "state": "current", "depends_on": ["look"], "description": "Pay it.", "reason": ""},
        ],
        "current": "pay",
        "done": 1,
        "total": 2,
        "remaining": 1,
        "stuck": 0,
        "tool": "update_step",
    },
    "plan.step_done_default": {"step": "pay", "description": "Pay the invoice."},
    "plan.decompose": {"tool": "set_plan", "limit": 30},
    "plan.step_summary": {"step": "pay", "description": "Pay the invoice.", "limit": 500},
}
"""Every message the engine itself sends, with sample data. Extensions declare theirs as `messages`."""


class Origin(msgspec.Struct, frozen=True):
    """Where a template stands: `file` as it is shown to people, and its `language`."""

    file: str
    language: str

    def __str__(self) -> str:
        return self.file


class _Source(msgspec.Struct, frozen=True):
    origin: Origin
    text: str
    shipped: bool = False


class Templates:
    """The message templates of one policy.

    `directories` are the policy's own; `extra` maps an origin (a rule id) to the templates its extension ships, as
    `{language: {kind: text}}`. `problems` holds what was wrong with the directories and the language; the texts
    themselves are judged by `check`.
    """

    def __init__(
        self,
        language: str = FALLBACK_LANGUAGE,
        directories: Sequence[str | Path] = (),
        extra: Mapping[str, Mapping[str, Mapping[str, str]]] | None = None,
    ) -> None:
        self.language = language
        self.languages = tuple(dict.fromkeys((language, FALLBACK_LANGUAGE)))
        self._own: dict[tuple[str, str], _Source] = {}
        self._extra: dict[tuple[str, str], _Source] = {}
        self._found: dict[str, _Source] = {}
        self._compiled: dict[str, jinja2.Template] = {}
        problems: list[str] = []
        if not _LANGUAGE.fullmatch(language):
            problems.append(f"language {language!r} is not a language code")
            self.languages = (FALLBACK_LANGUAGE,)
        for directory in directories:
            from pathlib import Path

            problems += self._read_directory(Path(directory))
        self._overridden = tuple(dict.fromkeys(kind for _, kind in self._own))
        for origin, texts in (extra or {}).items():
            problems += self._take_extra(origin, texts)
        written = {code for code, _ in (*self._own, *self._extra)}
        ours = self.languages[0] == FALLBACK_LANGUAGE
        if not ours and self.languages[0] not in written and not _ships(self.languages[0]):
            problems.append(f"language {language!r} has no templates: there are en and zh; others come from `prompts`")
        self.problems: tuple[str, ...] = tuple(problems)

    def has(self, kind: str) -> bool:
        """Return whether there is a template of this kind."""
        return self._look_up(kind) is not None

    def find(self, kind: str) -> Origin | None:
        """Return where the template of this kind stands, or `None`."""
        source = self._look_up(kind)
        return source.origin if source else None

    def fallbacks(self, kinds: Iterable[str]) -> tuple[str, ...]:
        """Return those of `kinds` that have a template, but none in the policy's language."""
        found = ((kind, self.find(kind)) for kind in kinds)
        return tuple(kind for kind, origin in found if origin and origin.language != self.languages[0])

    def overridden(self) -> tuple[str, ...]:
        """Return the kinds of all templates in the policy's directories (a kind nobody sends is a misspelt one)."""
        return self._overridden

    def shipped_by_extensions(self) -> frozenset[str]:
        """Return the kinds of all templates that extensions bring along."""
        return frozenset(kind for _, kind in self._extra)

    def check(self, kind: str, sample: Mapping[str, Any], *, ours: bool = False) -> str | None:
        """Render the template with sample data; return what is wrong with it, or `None`.

        It is rendered as it is sent, and once more as the hint that `mode: warn` makes of it (`advisory`). `ours` says
        that the sample ships with this package. Of a shipped template nothing but the text is needed then: that the
        two fit does not depend on the policy, and the tests render them all.
        """
        source = self._look_up(kind)
        if source is None:
            where = " or ".join(f"{code}/{kind}.txt" for code in self.languages)
            return f"message kind {kind!r} has no template ({where})"
        return None if ours and source.shipped else self._trouble(source, kind, sample)

    def _trouble(self, source: _Source, kind: str, sample: Mapping[str, Any]) -> str | None:
        from policyengine.sandbox import TemplateFault

        try:
            for advisory in (False, True):
                text, whole = self._render(source, kind, {**sample, "advisory": advisory})
                if not text:
                    return f"{source.origin}: the template of {kind!r} renders to an empty text"
                if not whole:
                    return f"{source.origin}: the text of {kind!r} is longer than {_limits(kind).text} characters"
        except TemplateFault as fault:
            line = f":{fault.line}" if fault.line else ""
            return f"{source.origin}{line}: {fault.message}"
        return None

    def prepare(self) -> None:
        """Import what renders texts, so that the first message of a run reads no file."""
        from policyengine.sandbox import compile_template

        compile_template("{{ 'a' }}", "")  # jinja2 imports a codec for the first literal it reads

    def render(self, kind: str, data: Mapping[str, Any]) -> str:
        """Return the text of a message. Never raises: if the template fails, the bare facts are the text."""
        from policyengine.sandbox import TemplateFault

        source = self._look_up(kind)
        if source is None:
            return bare_facts(kind, data, "there is no template for this message")
        try:
            text, whole = self._render(source, kind, data)
        except TemplateFault:
            text, whole = "", True
        if not text:
            return bare_facts(kind, data, "the template of this message failed")
        return text if whole else f"{text} …"

    def _render(self, source: _Source, kind: str, data: Mapping[str, Any]) -> tuple[str, bool]:
        # jinja2 is imported where the first text is needed (see `prepare`): a process that only loads needs none. And a
        # template is compiled when it is first sent; of all there are, a run sends a few.
        from policyengine.sandbox import compile_template, render_template

        template = self._compiled.get(kind)
        if template is None:
            template = self._compiled[kind] = compile_template(source.text, source.origin.file)
        limits = _limits(kind)
        values = clean_mapping({"advisory": False, "observed": None, "limit": None, "rule": "", **data}, limits)
        text, cut = render_template(template, values, limits.text)
        return text.strip(), not cut

    def _look_up(self, kind: str) -> _Source | None:
        # Only what exists is remembered: kinds that do not exist are without number.
        known = self._found.get(kind)
        if known is not None or not _KIND.fullmatch(kind):
            return known
        for language in self.languages:
            key = (language, kind)
            source = self._own.get(key) or _built_in(language, kind) or self._extra.get(key)
            if source is not None:
                self._found[kind] = source
                return source
        return None

    def _take_extra(self, origin: str, by_language: Mapping[str, Mapping[str, str]]) -> Iterable[str]:
        for code, texts in by_language.items():
            for kind, text in texts.items():
                source = _Source(Origin(f"templates of {origin}: {code}/{kind}", code), text)
                first = self._extra.setdefault((code, kind), source)
                if first.text != text:
                    yield f"{source.origin}: {kind!r} is taken by the {first.origin}"

    def _read_directory(self, directory: Path) -> Iterable[str]:
        if not directory.is_dir():
            yield f"{directory}: there is no such directory"
            return
        paths = [path for code in self.languages for path in sorted(directory.joinpath(code).glob("*.txt"))]
        if len(paths) > MAX_FILES:
            yield f"{directory}: more than {MAX_FILES} templates; the rest is not read"
        for path in paths[:MAX_FILES]:
            kind, code = path.stem, path.parent.name
            if not _KIND.fullmatch(kind):
                yield f"{path}: {kind!r} cannot be the kind of a message"
                continue
            # A link may lead within the directory (as those of a mounted volume do), not to any file there is.
            if not type(path)(os.path.realpath(path)).is_relative_to(os.path.realpath(directory)):
                yield f"{path}: leads out of the directory of templates"
                continue
            text = _read(path)
            if isinstance(text, _Unreadable):
                yield f"{path}: {text.reason}"
            else:
                self._own.setdefault((code, kind), _Source(Origin(str(path), code), text))


class _Unreadable(msgspec.Struct, frozen=True):
    reason: str


def _built_in(language: str, kind: str) -> _Source | None:
    path = _prompts().joinpath(language, f"{kind}.txt")
    try:
        text = path.read_text(encoding="utf-8")
    except OSError:
        return None
    return _Source(Origin(f"prompts/{language}/{kind}.txt", language), text, shipped=True)


def shipped_kinds() -> frozenset[str]:
    """Return the kinds of all templates of the package, whoever sends them."""
    folder = _prompts().joinpath(FALLBACK_LANGUAGE)
    return frozenset(item.name.removesuffix(".txt") for item in folder.iterdir() if item.name.endswith(".txt"))


def _ships(language: str) -> bool:
    return _prompts().joinpath(language).is_dir()


def _prompts() -> Traversable:
    """Return the templates of the package. The module takes long to import, and who sends no message needs none."""
    from importlib.resources import files

    return files("policyengine.prompts")


def _read(path: Path) -> str | _Unreadable:
    if not path.is_file():
        return _Unreadable("is no file")
    try:
        with path.open("rb") as stream:
            raw = stream.read(MAX_FILE_BYTES + 1)
        if len(raw) > MAX_FILE_BYTES:
            return _Unreadable(f"is larger than {MAX_FILE_BYTES} bytes")
        return raw.decode("utf-8-sig")
    except OSError as error:
        return _Unreadable(f"cannot be read: {error.strerror}")
    except UnicodeDecodeError:
        return _Unreadable("is not UTF-8")


def bare_facts(kind: str, data: Mapping[str, Any], why: str) -> str:
    """Return a plain sentence that stands in for a message whose template cannot be used."""
    facts = clean_mapping({name: data.get(name) for name in ("rule", "tool", "observed", "limit")}, Limits())
    told = [f"{name} {value}" for name, value in facts.items() if value is not None and value != ""]
    return f"{clean_text(kind, 100)}: {', '.join(told) or 'no details'} ({why})."


def clean_mapping(data: Mapping[str, Any], limits: Limits, depth: int = 0) -> dict[str, Any]:
    """Return plain, bounded values that are safe to put into a text."""
    pairs = list(data.items())[: limits.items + 10]
    return {clean_text(str(name), 100): _clean(value, limits, depth) for name, value in pairs}


def clean_text(text: str, limit: int) -> str:
    """Return `text` on one line, without invisible marks, cut after `limit` characters."""
    # Cut before the costly part: only so much of the text can matter.
    text = text[: limit * 4]
    if not text.isascii() or not text.isprintable() or "  " in text:
        text = _LONE_SURROGATES.sub("\ufffd", _HIDDEN.sub("", _BREAKS.sub(" ", text)))
    text = text.strip()
    return text if len(text) <= limit else f"{text[: limit - 1].rstrip()}…"


def _clean(value: Any, limits: Limits, depth: int) -> Any:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return clean_text(value, limits.value)
    if isinstance(value, int | float):
        return _clean_number(value)
    if depth < 3 and isinstance(value, Mapping):
        return clean_mapping(value, limits, depth + 1)
    if depth < 3 and isinstance(value, list | tuple):
        return [_clean(item, limits, depth + 1) for item in value[: limits.items]]
    return f"({type(value).__name__})"


def _clean_number(value: float) -> float | str:
    if value != value or abs(value) > _MAX_NUMBER:
        return "a number out of range"
    if isinstance(value, int):
        return int(value)
    return int(value) if value.is_integer() else round(value, 3)


def _limits(kind: str) -> Limits:
    return LIMITS.get(kind, Limits())
