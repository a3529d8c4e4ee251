"""What a rule that is not built in can do to others: nothing. Whatever it answers is an answer or its own fault."""

import io
import threading
import time
from collections.abc import Mapping

import msgspec
import pytest

from policyengine import Batch, Extension, ModelRequest, ModelResponse, ToolCall, ToolResult, hookimpl
from policyengine.actions import Rewrite
from policyengine.engine import Engine
from policyengine.errors import UsageError
from policyengine.messages import HistoryWarning, Message, ToolSpec, freeze
from policyengine.outcome import Outcome
from policyengine.parsing.verdict import Verdict
from policyengine.policy.model import Interventions
from policyengine.replay import replay_journal
from policyengine.rewrite import apply_rewrite
from policyengine.run import Run
from policyengine.runstate import Conversation, RunState
from policyengine.snapshot import build_snapshot
from policyengine.telemetry.journal import JournalWriter, content
from policyengine.testing import ListedRegistry, policy, rule

CALL = ToolCall("1", "pay", '{"n":{"a":[1]}}', {"n": {"a": [1]}})
TEXTS = {f"x.{kind}": {} for kind in ("hint", "deny", "stop", "ask", "retry", "end_step", "wind_down")}


def extension(name="t.x", **members):
    hooks = {
        key: hookimpl(value) if callable(value) and not isinstance(value, type) else value
        for key, value in members.items()
    }
    texts = {"messages": TEXTS, "templates": {"en": dict.fromkeys(TEXTS, "text")}, "rewrites_calls": True}
    return type("Made", (Extension,), {"name": name, **texts, **hooks})


def start(*classes, sinks=(), fields=None, **options):
    made = policy(*(rule(cls.name, **{"timeout_s": 5.0, **options}) for cls in classes), **(fields or {}))
    run = Run(build_snapshot(made, ListedRegistry(*classes)), RunState("r"), sinks=sinks)
    run.start("task")
    run.begin_iteration()
    return run


def answering(make):
    return extension(before_tool_call=lambda self, run, call, batch: make(run, call))


# ---- payloads


def mutable_parts(value):
    if isinstance(value, dict | list | set):
        yield value
    if isinstance(value, Mapping):
        value = tuple(value.values())
    if isinstance(value, msgspec.Struct):
        value = tuple(getattr(value, name) for name in value.__struct_fields__)
    if isinstance(value, tuple | list):
        for item in value:
            yield from mutable_parts(item)


def test_every_payload_is_read_only_for_a_third_party_rule():
    seen = {}

    def look(hook):
        names = {
            "before_model_call": "request",
            "after_model_response": "response",
            "after_parse": "verdict, calls",
            "hist_add_warning_start": "warning",
            "hist_add_warning_end": "warning",
            "before_tool_call": "call, batch",
            "after_tool_call": "call, result",
            "run_end": "outcome",
        }[hook]
        scope = {"seen": seen}
        exec(f"def {hook}(self, run, {names}): seen[{hook!r}] = ({names},)", scope)
        return scope[hook]

    hooks = ("before_model_call", "after_model_response", "after_parse", "hist_add_warning_start")
    hooks += ("hist_add_warning_end", "before_tool_call", "after_tool_call", "run_end")
    run = start(extension(**{hook: look(hook) for hook in hooks}))
    history = (Message("assistant", "", (CALL,), raw={"content": ["x"]}),)
    run.before_model_call(ModelRequest(history, (ToolSpec("pay", "", {"properties": {}}),)))
    run.after_model_response(ModelResponse("", (CALL,), raw={"x": [1]}))
    run.after_parse(Verdict("ok", (CALL,)))
    run.add_warning("empty", {"reason": ["x"]})
    run.before_tool_call(CALL, Batch("b"))
    run.after_tool_call(CALL, ToolResult("1", "ok"))
    run.end(Outcome("completed", messages=history))
    assert set(seen) == set(hooks)
    assert list(mutable_parts(tuple(seen.values()))) == []
    assert seen["before_model_call"][0].messages[0].raw == {"content": ("x",)}


def test_a_built_in_rule_sees_the_payload_itself():
    seen = []
    look = extension("look", before_tool_call=lambda self, run, call, batch: seen.append(call))
    run = Run(build_snapshot(policy(rule("look")), ListedRegistry(look, trusted=True)), RunState("r", started=True))
    run.before_tool_call(CALL)
    assert seen[0] is CALL


def test_arguments_that_were_seen_can_be_part_of_a_rewrite():
    decision = start(answering(lambda run, call: run.rewrite("x", args={**call.args, "m": call.args["n"]["a"]})))
    changed = decision.before_tool_call(CALL).changed
    assert changed.args == {"n": {"a": [1]}, "m": [1]}
    assert changed.arguments == '{"n":{"a":[1]},"m":[1]}'


def test_a_verdict_and_tools_that_were_seen_become_plain_again():
    keep = extension(
        after_parse=lambda self, run, verdict, calls: run.rewrite(
            "x", verdict=msgspec.structs.replace(verdict, text="t")
        ),
        before_model_call=lambda self, run, request: run.rewrite("x", tools=list(request.tools)),
    )
    run = start(keep)
    assert run.after_parse(Verdict("ok", (CALL,))).changed == Verdict("ok", (CALL,), "t")
    tools = (ToolSpec("pay", "", {"required": ["n"]}),)
    changed = run.before_model_call(ModelRequest((), tools)).changed
    assert changed.tools == tools
    assert type(changed.tools[0].parameters) is dict


def test_what_an_answer_holds_can_not_be_changed_later():
    kept = {}

    def answer(run, call):
        kept.update(data={"v": ["a"]}, args={"n": [1]})
        return [run.hint("x", **kept["data"]), run.rewrite("x", args=kept["args"])]

    decision = start(answering(answer)).before_tool_call(CALL)
    kept["data"]["v"].append("b")
    kept["args"]["n"].append(2)
    hint, rewrite = decision.votes[-1].raw
    assert (hint.data, rewrite.changes) == ({"v": ["a"]}, {"args": {"n": [1]}})


# ---- answers


class BadMap(Mapping):
    """A mapping that cannot be read."""

    def __getitem__(self, key):
        raise RuntimeError("bad")

    def __iter__(self):
        raise RuntimeError("bad")

    def __len__(self):
        return 1


class BadError(Exception):
    """An exception without a text."""

    def __str__(self):
        raise RuntimeError("bad")


def circular():
    value = {}
    value["self"] = value
    return value


def deep():
    value = []
    for _ in range(3000):
        value = [value]
    return {"n": value}


def raising(run, call):
    raise BadError


WRONG = {
    "kind": lambda run, call: run.hint("x", kind=["a"]),
    "code": lambda run, call: run.stop(5, "x.stop"),
    "no code": lambda run, call: run.stop(None, "x.stop"),
    "observed text": lambda run, call: run.stop("x", observed="five"),
    "observed bool": lambda run, call: run.stop("x", observed=True),
    "observed nan": lambda run, call: run.stop("x", observed=float("nan")),
    "limit infinite": lambda run, call: run.stop("x", limit=float("inf")),
    "observed complex": lambda run, call: run.stop("x", observed=1j),
    "observed huge": lambda run, call: run.stop("x", observed=10**5000),
    "data": lambda run, call: msgspec.structs.replace(run.stop("x"), data=[1]),
    "data unreadable": lambda run, call: run.stop("x", v=BadMap()),
    "circular": lambda run, call: run.rewrite("x", args=circular()),
    "deep": lambda run, call: run.rewrite("x", args=deep()),
    "nan": lambda run, call: run.rewrite("x", args={"n": [float("nan")]}),
    "infinite": lambda run, call: run.rewrite("x", args={"n": float("inf")}),
    "many": lambda run, call: [run.hint("x")] * 21,
    "very many": lambda run, call: [run.hint("x")] * 200_000,
    "raises": raising,
}


@pytest.mark.parametrize("mode", ["enforce", "shadow"])
@pytest.mark.parametrize("how", WRONG)
def test_an_answer_that_is_none_is_the_fault_of_its_rule(how, mode):
    healthy = extension("t.healthy", before_tool_call=lambda self, run, call, batch: run.hint("x"))
    run = start(answering(WRONG[how]), healthy, sinks=[lambda report: None], mode=mode)
    decision = run.before_tool_call(CALL)
    assert decision.action == ("deny" if mode == "enforce" else "allow")
    assert [bool(vote.error) for vote in decision.votes if vote.raw and vote.rule == "t.x"] == [True]
    assert [vote.raw[0].name for vote in decision.votes if vote.rule == "t.healthy"] == ["hint"]


def test_a_rule_can_not_turn_its_stop_into_a_hand_over():
    run = start(answering(lambda run, call: run.stop("x", then="hand_over")))
    assert run.stopped(run.before_tool_call(CALL)).action == "stop"


def test_the_cap_of_interventions_can():
    fields = {"interventions": Interventions(1, "hand_over")}
    run = start(answering(lambda run, call: run.deny("x")), fields=fields)
    assert run.before_tool_call(CALL).action == "deny"
    reason = run.stopped(run.before_tool_call(CALL))
    assert (reason.action, reason.code) == ("hand_over", "interventions")


# ---- faults in a row, time


def test_a_silent_hook_does_not_forgive_the_faults_of_another():
    def fail(self, run, call, result):
        raise RuntimeError("boom")

    blind = extension(before_tool_call=lambda self, run, call, batch: None, after_tool_call=fail)
    run = start(blind)
    actions = []
    for _ in range(3):
        run.before_tool_call(CALL)
        actions.append(run.after_tool_call(CALL, ToolResult("1", "ok"))[1].action)
    assert actions == ["allow", "allow", "stop"]


def test_a_built_in_rule_is_not_judged_by_the_clock():
    slow = extension("slow", before_tool_call=lambda self, run, call, batch: time.sleep(0.02))
    made = build_snapshot(policy(rule("slow", timeout_s=0.001)), ListedRegistry(slow, trusted=True))
    decision = Run(made, RunState("r", started=True), sinks=[lambda report: None]).before_tool_call(CALL)
    assert (decision.action, decision.votes[0].error) == ("allow", "")
    assert decision.votes[0].us > 10_000


class Copied(msgspec.Struct):
    """A state that is slow to copy."""

    n: int = 0

    def __deepcopy__(self, memo):
        time.sleep(0.15)
        return Copied(self.n)


def test_the_time_for_copying_the_state_is_not_the_rules():
    def count(self, run, call, batch):
        run.state.n += 1

    run = start(extension(state=Copied, before_tool_call=count), timeout_s=0.1)
    assert run.before_tool_call(CALL).action == "allow"
    assert run._views["t.x"].state.n == 1


def test_after_a_fault_the_state_is_as_it_was():
    class Counted(msgspec.Struct):
        n: int = 0

    def count(self, run, call, batch):
        run.state.n += 1
        return 5

    run = start(extension(state=Counted, before_tool_call=count))
    assert run.before_tool_call(CALL).action == "deny"
    assert run._views["t.x"].state.n == 0


def test_an_abandoned_thread_ends_with_its_job():
    release = threading.Event()
    seen = []

    def wait(self, run, call, batch):
        seen.append(threading.current_thread())
        release.wait(30)

    run = start(extension(before_tool_call=wait), timeout_s=0.02)
    for _ in range(3):
        run.before_tool_call(CALL)
    release.set()
    for thread in seen:
        thread.join(5)
    assert len(set(seen)) == 3
    assert not any(thread.is_alive() for thread in seen)


# ---- warn


def test_a_rule_that_warns_says_so_once_and_never_ends_a_run():
    quiet = {"at": 20}
    stop = extension(
        after_iteration=lambda self, run, iteration: run.stop("x") if iteration.number != quiet["at"] else None
    )
    run = start(stop, mode="warn", fields={"interventions": Interventions(1, "stop")})
    told = []
    for number in range(1, 41):
        decision = run.end_iteration(1)
        assert decision.allowed
        told += [number] * len(decision.notes)
        run.begin_iteration()
    assert told == [1, 21]
    assert run.state.interventions == 0


def test_a_hint_opens_an_episode_and_so_does_the_first_control_action_after_it():
    answers = iter(["hint", "hint", "deny", "deny", "hint", None, "hint"])

    def answer(run, call):
        kind = next(answers)
        return getattr(run, kind)("x") if kind else None

    run = start(answering(answer), mode="shadow", sinks=[lambda report: None])
    episodes = [run.before_tool_call(CALL).votes[-1].episode for _ in range(7)]
    assert episodes == [True, False, True, False, True, False, True]


# ---- replay of a journal


def journaled(tmp_path, classes, drive, **options):
    file = io.StringIO()
    made = policy(*(rule(cls.name, **{"timeout_s": 5.0, **options}) for cls in classes))
    engine = Engine(made, registry=ListedRegistry(*classes), journal=JournalWriter(file))
    drive(engine)
    path = tmp_path / "run.jsonl"
    path.write_text(file.getvalue())
    pairs = list(replay_journal(path, Engine(made, registry=ListedRegistry(*classes))))
    assert [new for _, new in pairs] == [old for old, _ in pairs]
    return [old for old, _ in pairs]


@pytest.mark.parametrize("slow", ["run_start", "step_start"])
def test_an_overrun_at_one_of_two_hooks_of_an_event_is_forced_at_that_one(tmp_path, slow):
    def maybe(run, hook):
        if run.id == "live" and hook == slow:
            time.sleep(0.3)

    def first(self, run, task):
        maybe(run, "run_start")
        return run.hint("x")

    def second(self, run, step):
        maybe(run, "step_start")
        return run.hint("x")

    both = extension(run_start=first, step_start=second)
    (start,) = journaled(tmp_path, [both], lambda engine: engine.start_run(run_id="live").start("t"), timeout_s=0.1)
    wanted = {"t.x": ("hint:x",), "step_start/t.x": ("hint:x",)}
    overrun = "t.x" if slow == "run_start" else "step_start/t.x"
    assert start.wanted == {**wanted, overrun: ("record:extension_error",)}


def test_what_a_rule_learns_of_a_stop_is_replayed(tmp_path):
    class Asked(msgspec.Struct):
        n: int = 0

    def once(self, run, call, batch):
        return run.ask("x") if not run.state.n else None

    def told(self, run, stop):
        run.state.n += 1

    def drive(engine):
        run = engine.start_run(run_id="live")
        run.start("t")
        run.stopped(run.before_tool_call(CALL, Batch("b")), call=1)
        run.before_tool_call(CALL, Batch("c"))

    decisions = journaled(tmp_path, [extension(state=Asked, before_tool_call=once, on_stop=told)], drive)
    assert [(decision.hook, decision.action) for decision in decisions[1:]] == [
        ("before_tool_call", "ask"),
        ("on_stop", "allow"),
        ("before_tool_call", "allow"),
    ]


def test_an_overrun_at_a_stop_is_no_fault_of_the_next_event():
    def slow(self, run, stop):
        time.sleep(0.2)

    run = start(extension(before_tool_call=lambda self, run, call, batch: run.ask("x"), on_stop=slow), timeout_s=0.05)
    run.stopped(run.before_tool_call(CALL))
    assert run.faults.seen == {}


def test_runs_of_a_conversation_without_a_name_share_it_in_the_replay(tmp_path):
    class Seen(msgspec.Struct):
        n: int = 0

    def count(self, run, call, batch):
        run.state.n += 1
        return run.deny("x", observed=run.state.n)

    def drive(engine):
        shared = Conversation()
        for number in range(2):
            run = engine.start_run(run_id=str(number), conversation=shared)
            run.start("t")
            run.before_tool_call(CALL, Batch("b"))

    decisions = journaled(tmp_path, [extension(state=Seen, scope="conversation", before_tool_call=count)], drive)
    assert [decision.observed for decision in decisions if decision.action == "deny"] == [1, 2]


def test_an_interrupt_that_a_rule_raises_is_its_fault_in_a_replay_too(tmp_path):
    def interrupt(self, run, call, batch):
        if run.id == "live":
            raise KeyboardInterrupt

    def drive(engine):
        run = engine.start_run(run_id="live")
        run.start("t")
        run.before_tool_call(CALL, Batch("b"))

    *_, decision = journaled(tmp_path, [extension(before_tool_call=interrupt)], drive)
    assert decision.code == "extension_error"


def test_a_vote_says_at_which_hook_it_was_given():
    both = extension(run_start=lambda self, run, task: run.hint("x"), step_start=lambda self, run, step: run.hint("x"))
    run = Run(build_snapshot(policy(rule("t.x", timeout_s=5.0)), ListedRegistry(both)), RunState("r"))
    decision = run.start("t")
    assert [vote.hook for vote in decision.votes] == ["run_start", "step_start"]
    assert set(content(decision).wanted) == {"t.x", "step_start/t.x"}


# ---- saving


class Anything(msgspec.Struct):
    """A state that takes anything."""

    value: object = None
    number: float = 0.0


def keeping(value, number=0.0):
    def keep(self, run, call, batch):
        run.state.value, run.state.number = value, number

    return start(extension(state=Anything, before_tool_call=keep))


@pytest.mark.parametrize("value", [threading.Event(), {(1, 2): 3}, circular()], ids=["object", "key", "circular"])
def test_state_that_cannot_be_saved_names_its_rule(value):
    run = start(extension(state=Anything, before_tool_call=lambda self, run, call, batch: None))
    run._views["t.x"].state.value = value
    with pytest.raises(UsageError, match=r"the state of rule 't\.x' \(t\.x\) cannot be saved"):
        run.save()


def test_numbers_that_json_cannot_say_survive_in_the_state():
    run = keeping([float("nan")], float("inf"))
    run.before_tool_call(CALL)
    cls = run.snapshot.extensions["t.x"].__class__
    engine = Engine(policy(rule("t.x")), registry=ListedRegistry(cls))
    state = engine.resume_run(run.save())[0]._views["t.x"].state
    assert (str(state.value), state.number) == ("[nan]", float("inf"))


# ---- rewrites


def test_a_rewrite_of_a_warning_is_copied():
    data = {"a": ["x"]}
    run = start(extension(hist_add_warning_start=lambda self, run, warning: run.rewrite("x", data=data)))
    warning, _ = run.add_warning("empty")
    data["a"].append("y")
    assert warning.data == {"a": ["x"]}


def test_frozen_data_can_be_rewritten_by_itself():
    warning = HistoryWarning("empty", "t", {"a": [{"b": 1}]})
    assert apply_rewrite(warning, Rewrite("x", changes={"data": freeze(warning.data)})) == warning
