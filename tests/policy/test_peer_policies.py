"""The policies that restate other systems' rules stop where those systems' own documents and tests say that they do."""

from __future__ import annotations

from functools import cache

import pytest

from policyengine.engine import Engine
from policyengine.policy.files import is_path, shipped_policies
from policyengine.script import ScriptedCall, batch, call, say
from policyengine.testing import make_engine, play

PEERS = ("cline", "gemini_cli", "hermes", "langchain", "openhands", "roo_code")
ENDS = ("stop", "end_step", "wind_down")


@cache
def engine(name):
    return Engine(f"peers/{name}", enforce_time=False)


def ended(name, turns):
    """Return the round in which a policy ends a run, and why."""
    played = play(engine(name), [*turns, say("Done.")])
    rounds = sorted((number, action) for action in ENDS for number in played.fired(action))
    return (rounds[0][0], played.outcome.stop.code) if rounds and played.outcome.stop else None


def same(times, answer="same", **fields):
    return [call("look", {"page": 1}, answer, **fields)] * times


def block(names, times):
    return [call("look", {"page": name}, f"page {name}") for name in names] * times


def news(times, **fields):
    """Calls that all differ, with answers that all differ."""
    return [call(f"look_{number % 4}", {"page": number}, f"page {number}", **fields) for number in range(times)]


def test_every_peer_has_a_policy_with_an_address_of_its_own():
    assert [name for name in shipped_policies() if "/" in name] == [f"peers/{name}" for name in PEERS]
    assert engine("openhands").snapshot.policy.name == "peers-openhands"


def test_a_path_is_never_taken_for_a_shipped_policy_in_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert not is_path("peers/openhands")
    for path in ("./peers/openhands", "peers/openhands.yaml", "peers/other", "other/openhands"):
        assert is_path(path)


def test_a_policy_extends_one_in_a_folder_by_its_name():
    own = make_engine(
        "apiVersion: policyengine/v1\nkind: Policy\nname: own\nextends: [peers/openhands]\n"
        "extensions: {stall_detector: {with: {repeat: {stop: 9}}}}\n"
    )
    assert own.snapshot.policy.files == ("policy.yaml", "policy:peers/openhands")
    assert play(own, same(12)).outcome.stop.observed == 9


# ---- each peer's own scenarios


@pytest.mark.parametrize("name", PEERS)
def test_work_that_gets_on_is_left_alone(name):
    assert ended(name, news(9)) is None


def test_openhands_stops_the_fourth_equal_call_with_an_equal_result():
    assert ended("openhands", same(3)) is None
    assert ended("openhands", same(6)) == (4, "repeat")


def test_openhands_stops_the_fourth_equal_call_that_fails_whatever_it_says():
    turns = [call("look", {"page": 1}, f"error {word}", status="error") for word in ("one", "two", "three", "four")]
    assert ended("openhands", turns[:3]) is None
    assert ended("openhands", turns) == (4, "repeat")


def test_openhands_does_not_stop_equal_calls_whose_results_differ():
    turns = [call("look", {"page": 1}, f"answer {word}") for word in ("one", "two", "three", "four", "five", "six")]
    assert ended("openhands", turns) is None


def test_openhands_stops_six_calls_that_alternate_and_no_longer_cycle():
    assert ended("openhands", block("ab", 2)) is None
    assert ended("openhands", block("ab", 4)) == (6, "cycle")
    assert ended("openhands", block("abc", 6)) is None


def test_gemini_cli_tells_the_model_at_five_equal_calls_and_ends_the_turn_at_the_next():
    turns = [call("look", {"page": 1}, f"answer {word}") for word in "abcdefgh"]
    played = play(engine("gemini_cli"), turns)
    assert (played.fired("hint"), played.fired("stop")) == ([5], [6])


def test_gemini_cli_finds_a_cycle_of_up_to_five_calls_at_its_fifth_repetition():
    for names in ("ab", "abc", "abcde"):
        played = play(engine("gemini_cli"), block(names, 6))
        assert (played.fired("hint")[0], played.fired("stop")) == (5 * len(names), [6 * len(names)])
    assert ended("gemini_cli", block("abcdef", 6)) is None


def test_roo_code_allows_three_equal_calls_and_asks_at_the_fourth():
    turns = [call("look", {"page": 1}, f"answer {word}") for word in "abcd"]
    assert ended("roo_code", turns[:3]) is None
    assert ended("roo_code", turns) == (4, "repeat")
    assert ended("roo_code", [*turns[:3], *news(1), *turns[:3]]) is None


def test_roo_code_asks_after_three_mistakes_in_a_row():
    assert ended("roo_code", news(3, status="error")) == (3, "tool_failures")
    assert ended("roo_code", [*news(2, status="error"), *news(1), *news(2, status="error")]) is None


def test_cline_tells_the_model_at_three_equal_calls_and_stops_at_five():
    turns = [call("look", {"page": 1, "task_progress": word}, f"answer {word}") for word in "abcdef"]
    played = play(engine("cline"), turns)
    assert (played.fired("hint"), played.fired("stop")) == ([3], [5])


def test_cline_stops_at_six_mistakes_in_a_row():
    assert ended("cline", news(5, status="error")) is None
    assert ended("cline", news(6, status="error")) == (6, "tool_failures")


def test_hermes_notices_three_equal_calls_and_ends_the_turn_at_five():
    played = play(engine("hermes"), same(8))
    assert (played.fired("hint", "stall_detector"), played.fired("stop")) == ([3], [5])


def test_hermes_ends_the_turn_at_five_repetitions_of_a_cycle_of_up_to_four_calls():
    assert ended("hermes", block("ab", 4)) is None
    assert ended("hermes", block("abcd", 5)) == (20, "cycle")
    assert ended("hermes", block("abcde", 6)) is None


def test_hermes_ends_the_turn_when_one_tool_has_failed_eight_times():
    turns = [call("look", {"page": number}, f"no page {number}", status="error") for number in range(9)]
    assert ended("hermes", turns[:7]) is None
    assert ended("hermes", turns) == (8, "tool_failures")


def test_hermes_lets_commands_fail_and_polls_wait():
    turns = [call("terminal", {"command": f"test {number}"}, f"red {number}", status="error") for number in range(9)]
    assert ended("hermes", turns) is None
    assert ended("hermes", [call("job_poll", {"job": 1}, "running")] * 9) is None


def test_hermes_stops_a_read_that_comes_back_for_the_sixth_time_with_the_same_answer():
    read = call("read_file", {"path": "a"}, "text")
    assert ended("hermes", [turn for other in news(6) for turn in (other, read)]) == (12, "interleaved")


def test_langchain_asks_for_the_answer_when_ten_calls_are_used_up():
    assert ended("langchain", news(9)) is None
    assert ended("langchain", news(14)) == (11, "call_limit")


def test_langchain_counts_the_calls_of_a_batch_one_by_one():
    calls = [ScriptedCall("look", {"page": number}, "text") for number in range(12)]
    played = play(engine("langchain"), [batch(*calls), say("Done.")])
    assert played.actions() == ["allow"] * 10 + ["deny"] * 2


@pytest.mark.parametrize(("name", "limit"), [("roo_code", 3), ("cline", 6)])
def test_unusable_replies_are_mistakes(name, limit):
    assert ended(name, [say("")] * (limit - 1)) is None
    assert ended(name, [say("")] * limit) == (limit, "unusable_responses")
