"""The base class of every guard: options, state, messages, proofs.

Knows: what an extension declares about itself.
Must not know: policies, dispatch, any particular extension.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, ClassVar, Literal

import msgspec

from policyengine.messages import ToolFacts
from policyengine.script import Turn
from policyengine.shared.pools import Pool

API_VERSION = 1
"""Version of the hook API; an extension declares the one it was written for as `api`."""

Scope = Literal["conversation", "run", "step", "iteration"]


class Options(Mapping[str, Any]):
    """Read-only options with attribute access: `options.repeat.deny`. Nested mappings are `Options` too."""

    __slots__ = ("_values",)

    def __init__(self, values: Mapping[str, Any]) -> None:
        wrapped = {key: Options(item) if isinstance(item, Mapping) else item for key, item in values.items()}
        object.__setattr__(self, "_values", wrapped)

    def __getattr__(self, key: str) -> Any:
        try:
            return self._values[key]
        except KeyError:
            raise AttributeError(f"no option {key!r}; options are: {', '.join(self._values)}") from None

    def __setattr__(self, key: str, value: Any) -> None:
        raise AttributeError("options are read-only")

    def __getitem__(self, key: str) -> Any:
        return self._values[key]

    def get(self, key: str, default: Any = None) -> Any:
        """Return an option, or `default`; rules ask for what is not set in every round."""
        return self._values.get(key, default)

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"Options({self._values!r})"


class OptionProblem(msgspec.Struct, frozen=True):
    """A problem of options that a schema cannot express. `path` is the key path below `with:`."""

    path: tuple[str, ...]
    message: str
    fatal: bool = True


class Proof(msgspec.Struct, frozen=True):
    """A sequence of turns that must trip one rung of a rule.

    `label` names what is proved (`repeat`, `cycle`, `repeat[check_job]`); `action` and `code` are what must be
    returned; `expect` is the iteration, from 1, at which it must be returned. `tools` are facts about the tools
    that the sequence uses; they replace the policy's for the proof. `protocol` is `native` or `text`. `pace_s` is how
    many seconds each response takes, on a clock that nothing else moves.
    """

    label: str
    action: str
    code: str
    expect: int
    turns: tuple[Turn, ...]
    tools: dict[str, ToolFacts] = {}
    protocol: Literal["native", "text"] = "native"
    pace_s: float = 0.0


def is_shipped(cls: type[Extension]) -> bool:
    """Return whether a class is an extension of this package: what never differs of it is for the tests to check.

    What a class says of itself does not count: it must be the very one that the list of built-in extensions leads to.
    """
    package = "policyengine.extensions"
    classes: Mapping[str, str] = getattr(sys.modules.get(package), "CLASSES", {})
    return any(getattr(sys.modules.get(f"{package}.{name}"), known, None) is cls for name, known in classes.items())


class Extension:
    """Base of every guard. Subclass it, set the class attributes, implement hooks marked with `@hookimpl`.

    An instance is made once per rule and policy generation and is frozen after `setup`: everything that changes
    during a run lives in `run.state`.

    Class attributes:
        name: the name policies use. Third-party names contain a dot (`acme.spend`), built-in names do not.
        api: the hook API version the extension was written for.
        options: the Cerberus schema of `with:`; every field has a `type`, thresholds have `min` and `max`, and
            `meta: {stricter: lower | higher | subset | superset}` where a direction is stricter, with `absent: loosest`
            where the option may be missing and nothing is as loose (docs/write-an-extension.md). On an instance,
            `self.options` holds the validated values.
        state: a `msgspec.Struct` class whose fields all have defaults, or `None`.
        state_version: raise it when the meaning of `state` changes; saved state of another version is reset.
        scope: how long the state lives (see `state_scope`).
        messages: every message kind the extension can send, with sample data to render it at load. The templates
            are `<language>/<kind>.txt` in `prompts/`, in the package's `templates`, or in a policy's `prompts:`.
        templates: `{language: {kind: template text}}` shipped by a third-party package.
        rewrites_calls: must be true for an extension that answers `before_tool_call` with a rewrite. Such rules are
            asked first and then once more about the changed call; all other rules see only the final call.
        needs: hook points without which a rule can never fire, beside those at which it answers: where it measures.
    """

    name: ClassVar[str] = ""
    api: ClassVar[int] = API_VERSION
    options: Any = {}
    state: ClassVar[type[msgspec.Struct] | None] = None
    state_version: ClassVar[int] = 1
    scope: ClassVar[Scope] = "run"
    messages: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    templates: ClassVar[Mapping[str, Mapping[str, str]]] = {}
    rewrites_calls: ClassVar[bool] = False
    needs: frozenset[str] = frozenset()

    _frozen: bool = False

    def __init__(self, options: Mapping[str, Any]) -> None:
        self.options = Options(options)
        self.setup()
        self._frozen = True

    def __setattr__(self, key: str, value: Any) -> None:
        if self._frozen:
            raise AttributeError(f"{type(self).__name__} is frozen: keep what changes during a run in run.state")
        object.__setattr__(self, key, value)

    def setup(self) -> None:
        """Precompute what the options allow (compiled patterns, tables). Called once, before the instance freezes."""

    def state_scope(self) -> Scope:
        """Return how long this rule's state lives. Override where an option chooses it."""
        return self.scope

    @classmethod
    def check_options(cls, options: Mapping[str, Any]) -> Iterable[OptionProblem]:
        """Return problems of validated options that the schema cannot express (a rung that can never fire)."""
        return ()

    def answers(self) -> Mapping[str, Iterable[str]] | None:
        """Return what these options can make it answer: names of actions by hook point, in policy spelling.

        A host that cannot carry one of them out refuses the policy when it is loaded. `None`: nothing is declared, so
        nobody can tell before the run.
        """
        return None

    def pool(self) -> Pool | None:
        """Return what this rule counts together with other runs, if anything. Without a name it has the rule's id."""
        return None

    def proofs(self) -> Iterable[Proof]:
        """Return, for every rung these options configure, a sequence that must trip it (`policyengine prove`)."""
        return ()
