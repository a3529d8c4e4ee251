"""The lattice: adding a rule never loosens, order never changes the control action, modes cap."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from policyengine.actions import RANKS, Ask, Deny, EndStep, Hint, Record, Retry, Rewrite, Stop, WindDown
from policyengine.decision import Vote, cap, combine

ACTIONS = [Hint, Record, Rewrite, Retry, Ask, Deny, WindDown, EndStep, Stop]
MODES = ["enforce", "warn", "shadow", "disabled"]

answers = st.lists(st.sampled_from(ACTIONS).map(lambda cls: cls("code", "kind")), max_size=3).map(tuple)


@st.composite
def votes(draw, max_size=6):
    count = draw(st.integers(0, max_size))
    made = []
    for number in range(count):
        raw, mode = draw(answers), draw(st.sampled_from(MODES))
        made.append(Vote(f"rule{number}", "use", "f:1", mode, raw, cap(raw, mode)))
    return made


def rank(cast):
    control, _, _ = combine(cast)
    return control.rank if control else 0


@given(votes(), votes(max_size=1))
def test_adding_any_rule_never_loosens_a_decision(cast, more):
    assert rank(cast + more) >= rank(cast)
    assert rank(more + cast) >= rank(cast)


@given(votes(max_size=4))
def test_order_of_rules_never_changes_the_control_action(cast):
    names = set()
    for order in itertools.permutations(cast):
        control, _, _ = combine(list(order))
        names.add(control.name if control else "allow")
    assert len(names) == 1


@given(votes())
def test_the_winner_is_the_strictest_and_the_first_of_equals(cast):
    control, winner, _ = combine(cast)
    ranks = [action.rank for vote in cast for action in vote.effective]
    assert (control.rank if control else 0) == max(ranks, default=0)
    if winner is not None:
        first = next(vote for vote in cast if any(action.rank == control.rank for action in vote.effective))
        assert winner is first


def test_the_lattice_is_the_documented_one():
    strictest_first = sorted(RANKS, key=RANKS.get, reverse=True)
    assert strictest_first == ["stop", "end_step", "wind_down", "deny", "ask", "retry", "rewrite", "allow"]


def test_warn_turns_control_into_a_hint_and_drops_rewrites():
    capped = cap((Deny("c", "k", 3.0, 3.0, {"tool": "t"}), Rewrite("r", changes={"x": 1}), Record("p")), "warn")
    assert [action.name for action in capped] == ["hint", "record"]
    assert (capped[0].code, capped[0].kind, capped[0].observed) == ("c", "k", 3.0)


def test_shadow_and_disabled_leave_nothing_effective():
    assert cap((Stop("c"),), "shadow") == ()
    assert cap((Stop("c"),), "disabled") == ()


def test_the_second_rewrite_is_a_conflict():
    cast = [Vote(name, "u", "f:1", "enforce", (), (Rewrite("r", changes={"args": {}}),)) for name in ("a", "b")]
    assert combine(cast)[2] == ("b",)
