"""The pytest plugin for authors of extensions: fixtures that play scripted turns under a policy.

Knows: pytest. Must not know: the engine, before a test asks for a fixture. Every test run of an environment in which
this package is installed imports this module, so it imports nothing else and changes nothing.

The assertions are in `policyengine.testing`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from policyengine.extension import Extension
    from policyengine.testing import ManualClock, Played


@pytest.fixture
def policyengine_clock() -> ManualClock:
    """A clock that stands still until a test moves it (`policyengine_clock.now += 60`), or a played run waits."""
    from policyengine.testing import ManualClock

    return ManualClock()


@pytest.fixture
def policyengine_play(policyengine_clock: ManualClock) -> Callable[..., Played]:
    """Play scripted turns under a policy through the real loop: `policyengine_play(rules, turns)`.

    `rules` is what stands under `extensions:` of a policy, or a whole policy, as data or as YAML; `turns` are turns
    of a script (`call(...)`, `say(...)`), data or YAML. `extensions` are classes that the policy may use beside the
    built-in, installed and `folders`' ones. `pace_s` is how long each response takes on `policyengine_clock`, `human`
    answers where a rule asks, and every other keyword is a setting of the policy. Returns a
    `policyengine.testing.Played`: `outcome`, `decisions`, `answers` of every rule, `actions(hook)`.
    """
    from policyengine.testing import make_engine, play, read_turns

    def playing(
        rules: Mapping[str, Any] | str,
        turns: Sequence[Any] | str,
        *,
        extensions: Iterable[type[Extension]] = (),
        folders: Iterable[str | Path] = (),
        task: str = "test",
        agent: str = "",
        human: Callable[[Any], bool] | None = None,
        pace_s: float = 0.0,
        **settings: Any,
    ) -> Played:
        clock = policyengine_clock
        engine = make_engine(rules, extensions=extensions, folders=folders, clock=clock, **settings)
        return play(engine, read_turns(turns), task=task, human=human, clock=clock, pace_s=pace_s, agent=agent)

    return playing
