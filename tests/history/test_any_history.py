"""Whatever a history is like: what is repaired is valid, stays as it is, and holds nothing that nobody said."""

import copy
import json

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from policyengine.history.check import PROBLEMS, check_history
from policyengine.history.cuts import legal_cuts, nearest_cuts
from policyengine.history.repair import REPAIRS, UNREPAIRABLE, repair_history

ANY = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
THOUGHT = ("thinking", "redacted_thinking", "reasoning")


def plain(value):
    return json.dumps(value, sort_keys=True)


def thoughts(messages):
    """Every piece of reasoning in a history."""
    found = []
    for message in messages:
        found += [plain(message)] if message.get("type") == "reasoning" else []
        found += [plain(["reasoning", message["reasoning_content"]])] if "reasoning_content" in message else []
        for part in [*(message.get("content") or []), *message.get("parts", [])]:
            if isinstance(part, dict) and (part.get("type") in THOUGHT or "thoughtSignature" in part):
                found.append(plain(part.get("thoughtSignature") or part))
    return found


def test_what_is_repaired_passes_but_for_what_only_the_provider_can_write(damaged):
    @ANY
    @given(damaged)
    def holds(case):
        shape, profile, messages = case
        given = copy.deepcopy(messages)
        repaired = repair_history(messages, shape=shape, profile=profile)
        assert messages == given
        assert check_history(repaired.messages, shape=shape, profile=profile) == repaired.remaining
        assert {problem.code for problem in repaired.remaining} <= {*UNREPAIRABLE}
        assert {repair.code for repair in repaired.repairs} <= REPAIRS.keys()
        assert all(0 <= repair.index < len(messages) for repair in repaired.repairs)

    holds()


def test_repairing_twice_is_repairing_once(damaged):
    @ANY
    @given(damaged)
    def holds(case):
        shape, profile, messages = case
        once = repair_history(messages, shape=shape, profile=profile)
        twice = repair_history(once.messages, shape=shape, profile=profile)
        assert (twice.messages, twice.repairs, twice.remaining) == (once.messages, (), once.remaining)

    holds()


def test_a_valid_history_is_passed_on_as_it_is(damaged):
    @ANY
    @given(damaged)
    def holds(case):
        shape, profile, messages = case
        problems = check_history(messages, shape=shape, profile=profile)
        assert all(problem.code in PROBLEMS and 0 <= problem.index < len(messages) for problem in problems)
        repaired = repair_history(messages, shape=shape, profile=profile)
        if not problems:
            assert (repaired.repairs, repaired.remaining) == ((), ())
            assert all(new is old for new, old in zip(repaired.messages, messages, strict=True))
        elif not all(problem.code in UNREPAIRABLE for problem in problems):
            assert repaired.repairs

    holds()


def test_no_reasoning_is_invented(damaged):
    @ANY
    @given(damaged)
    def holds(case):
        shape, profile, messages = case
        left = thoughts(messages)
        for thought in thoughts(repair_history(messages, shape=shape, profile=profile).messages):
            left.remove(thought)

    holds()


def test_without_thinking_the_fallback_is_accepted(damaged):
    @ANY
    @given(damaged)
    def holds(case):
        shape, profile, messages = case
        repaired = repair_history(messages, shape=shape, profile=profile)
        if repaired.disable_thinking:
            relaxed = {**profile, "thinking": "disabled", "reasoning_content": "any"}
            again = repair_history(repaired.messages, shape=shape, profile=relaxed)
            assert {problem.code for problem in again.remaining} <= {"missing_thought_signature"}

    holds()


def test_a_cut_leaves_no_result_without_its_call(damaged):
    @ANY
    @given(damaged, st.integers(-1, 10))
    def holds(case, at):
        shape, profile, messages = case
        valid = repair_history(messages, shape=shape, profile=profile).messages
        before = {problem.code for problem in check_history(valid, shape=shape, profile=profile)}
        cuts = legal_cuts(valid, shape=shape, profile=profile)
        assert not valid or 0 in cuts or shape == "openai_responses"
        for cut in cuts:
            kept = [*summary(shape), *valid[cut:]]
            after = {problem.code for problem in check_history(kept, shape=shape, profile=profile)}
            assert after <= before, cut
        near = nearest_cuts(valid, at, shape=shape, profile=profile)
        assert set(near) <= set(cuts)
        assert len(near) <= 2
        assert bool(near) == bool(cuts)
        if at in cuts:
            assert near == (at,)

    holds()


def summary(shape):
    if shape == "gemini":
        return [{"role": "user", "parts": [{"text": "summary"}]}]
    return [{"role": "user", "content": "summary"}]
