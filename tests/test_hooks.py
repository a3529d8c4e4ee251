"""Every hook point is called in its moment with its payload: one test for each, named after the method."""

from __future__ import annotations

import pytest

from policyengine import (
    Agent,
    Engine,
    Extension,
    Message,
    ModelResponse,
    Outcome,
    ProviderError,
    RequestError,
    ScriptedCall,
    StopReason,
    ToolSpec,
    batch,
    call,
    hookimpl,
    say,
)
from policyengine.providers.errors.remedies import with_remedies
from policyengine.providers.scripted import answer_text
from policyengine.testing import ListedRegistry, play, policy, rule

BROKEN = "I will look into it."


class Heard(list):
    """What a witness heard: `(method, payload)` in order."""

    def names(self):
        """Return the methods that were called, in order."""
        return [name for name, _ in self]

    def of(self, method):
        """Return the payloads of one hook."""
        return [payload for name, payload in self if name == method]


ACTIONS = ("hint", "deny", "end_step", "stop", "retry", "ask")


class Listening(Extension):
    """Hands every hook it hears to `note`, which `witness` sets."""

    name = "witness"
    messages = {f"seen.{action}": {} for action in ACTIONS}
    templates = {"en": {kind: f"text of {kind}" for kind in messages}}

    @hookimpl
    def run_start(self, run, task):
        return self.note("run_start", run, task)

    @hookimpl
    def run_end(self, run, outcome):
        self.note("run_end", run, outcome)

    @hookimpl
    def step_start(self, run, step):
        return self.note("step_start", run, step)

    @hookimpl
    def step_end(self, run, step):
        return self.note("step_end", run, step)

    @hookimpl
    def before_model_call(self, run, request):
        return self.note("before_model_call", run, request)

    @hookimpl
    def after_model_response(self, run, response):
        return self.note("after_model_response", run, response)

    @hookimpl
    def after_parse(self, run, verdict, calls):
        return self.note("after_parse", run, verdict, calls)

    @hookimpl
    def after_provider_error(self, run, error):
        return self.note("after_provider_error", run, error)

    @hookimpl
    def hist_add_warning_start(self, run, warning):
        return self.note("hist_add_warning_start", run, warning)

    @hookimpl
    def hist_add_warning_end(self, run, warning):
        return self.note("hist_add_warning_end", run, warning)

    @hookimpl
    def before_tool_call(self, run, call, batch):
        return self.note("before_tool_call", run, call, batch)

    @hookimpl
    def after_tool_call(self, run, call, result):
        return self.note("after_tool_call", run, call, result)

    @hookimpl
    def after_iteration(self, run, iteration):
        return self.note("after_iteration", run, iteration)

    @hookimpl
    def on_stop(self, run, stop):
        self.note("on_stop", run, stop)

    @hookimpl
    def on_policy_loaded(self, snapshot):
        self.note("on_policy_loaded", None, snapshot)

    @hookimpl
    def on_policy_rejected(self, problems):
        self.note("on_policy_rejected", None, problems)


def witness(**answers):
    """Return an extension that notes every hook it hears and answers as told, and the list of its notes.

    An answer is a function of `run` and the payload. The self-test at load is not noted.
    """
    heard = Heard()

    def note(method, run, *payload):
        if run is not None and run.id == "self-test":
            return None
        heard.append((method, payload))
        return answers[method](run, *payload) if method in answers else None

    cls = type("Witness", (Listening,), {"note": staticmethod(note)})
    return ListedRegistry(cls, trusted=True), heard


def watched(turns, protocol="native", **answers):
    """Play turns under a policy whose one rule is a witness; return what it heard and what was played."""
    registry, heard = witness(**answers)
    engine = Engine(policy(rule("witness"), protocol=protocol), registry=registry)
    return heard, play(engine, turns)


def hint(run, *payload):
    return run.hint("seen")


def texts_of(played, origin):
    return [message.text for message in played.messages if message.origin == origin]


def test_hook_run_start():
    heard, played = watched([say("done")], run_start=hint)
    assert heard.of("run_start") == [("test",)]
    assert heard.names().index("run_start") < heard.names().index("step_start")
    assert [message.text for message in played.messages] == ["test", "text of seen.hint", "done"]


def test_hook_run_end():
    heard, played = watched([call("look"), say("done")])
    assert heard.names()[-1] == "run_end"
    assert heard.of("run_end") == [(played.outcome,)]
    stopped, played = watched([call("look")], before_tool_call=lambda run, call, batch: run.stop("seen"))
    assert stopped.of("run_end") == [(played.outcome,)]
    assert isinstance(played.outcome, Outcome)
    assert played.outcome.status == "stopped"


def test_hook_step_start():
    registry, heard = witness()
    run = Engine(policy(rule("witness")), registry=registry).start_run()
    run.start("task")
    run.user_message("and one more thing")
    run.user_message("reminder of the harness", injected=True)
    assert heard.of("step_start") == [(1,), (2,)]
    heard, played = watched([say("done")], step_start=lambda run, step: run.end_step("seen"))
    assert (played.outcome.status, played.outcome.stop.action) == ("stopped", "end_step")
    assert heard.of("before_model_call") == []


def test_hook_step_end():
    registry, heard = witness()
    run = Engine(policy(rule("witness")), registry=registry).start_run()
    run.start("task")
    run.user_message("and one more thing")
    assert heard.names()[-4:] == ["run_start", "step_start", "step_end", "step_start"]
    run.end(Outcome("completed"))
    assert heard.of("step_end") == [(1,), (2,)]
    assert heard.names()[-2:] == ["step_end", "run_end"]


def test_hook_before_model_call():
    offered = (ToolSpec("look", "Look somewhere."),)
    heard, played = watched(
        [say("done")], before_model_call=lambda run, request: run.rewrite("fewer_tools", tools=offered)
    )
    ((request,),) = heard.of("before_model_call")
    assert [message.text for message in request.messages] == ["test"]
    assert (request.attempt, request.purpose) == (1, "main")
    changed = next(decision.changed for _, decision in played.decisions if decision.hook == "before_model_call")
    assert changed.tools == offered


def test_hook_after_model_response():
    heard, played = watched([say("done", reasoning="because")], after_model_response=hint)
    ((response,),) = heard.of("after_model_response")
    assert isinstance(response, ModelResponse)
    assert (response.text, response.reasoning) == ("done", "because")
    assert heard.names().index("after_model_response") == heard.names().index("after_parse") - 1
    assert texts_of(played, "rule:witness") == ["text of seen.hint"]


def test_hook_after_parse():
    def as_repeat(run, verdict, calls):
        return run.rewrite("seen", kind="repeat") if run.iteration == 1 else None

    heard, played = watched([say("the same again"), call("look"), say("done")], after_parse=as_repeat)
    (_, (verdict, calls), _) = heard.of("after_parse")
    assert verdict.kind == "ok"
    assert [made.name for made in calls] == ["look"]
    (warning,) = heard.of("hist_add_warning_end")
    assert warning[0].kind == "repeat"
    assert played.outcome.status == "completed"


def test_hook_after_provider_error():
    class Unsteady:
        """Fails once, then answers."""

        name = "unsteady"
        asked = 0

        def complete(self, request):
            """Fail at the first request."""
            self.asked += 1
            if self.asked == 1:
                raise RequestError(ProviderError("overloaded", "try later", 503))
            return ModelResponse("done")

    registry, heard = witness(after_provider_error=lambda run, error: run.retry("seen"))
    model = Unsteady()
    outcome = Agent(Engine(policy(rule("witness")), registry=registry), model).run("task")
    assert (outcome.status, model.asked) == ("completed", 2)
    assert heard.of("after_provider_error") == [(with_remedies(ProviderError("overloaded", "try later", 503)),)]
    assert [request.attempt for (request,) in heard.of("before_model_call")] == [1, 2]


def test_hook_hist_add_warning_start():
    def shorter(run, warning):
        return run.rewrite("seen", text="Once more, please.")

    turns = [say(BROKEN), say(answer_text("done"))]
    heard, played = watched(turns, "text", hist_add_warning_start=shorter)
    ((warning,),) = heard.of("hist_add_warning_start")
    assert (warning.kind, warning.data["reason"]) == ("misformat", "no_object")
    assert texts_of(played, "warning:misformat") == ["Once more, please."]


def test_hook_hist_add_warning_end():
    def stop(run, warning):
        return run.stop("seen", observed=1, limit=1)

    heard, played = watched([say(BROKEN), say(answer_text("done"))], "text", hist_add_warning_end=stop)
    assert heard.names().index("hist_add_warning_end") == heard.names().index("hist_add_warning_start") + 1
    assert [warning.kind for (warning,) in heard.of("hist_add_warning_end")] == ["misformat"]
    assert (played.outcome.status, played.outcome.stop.code) == ("stopped", "seen")
    assert len(texts_of(played, "warning:misformat")) == 1


def test_hook_before_tool_call():
    def second_is_refused(run, call, batch):
        return run.deny("seen") if batch.index == 1 else None

    two = batch(ScriptedCall("look", {"at": 1}), ScriptedCall("look", {"at": 2}))
    heard, played = watched([two, say("done")], before_tool_call=second_is_refused)
    (first, in_batch), (second, also) = heard.of("before_tool_call")
    assert (first.args, second.args) == ({"at": 1}, {"at": 2})
    assert (in_batch.id, in_batch.index, also.id, also.index) == (also.id, 0, in_batch.id, 1)
    # All calls are judged before the result of any of them is known.
    assert heard.names()[6:10] == ["before_tool_call"] * 2 + ["after_tool_call"] * 2
    assert (played.outcome.calls, played.outcome.executed) == (2, 1)


def test_hook_after_tool_call():
    def only_first(run, call, batch):
        return run.deny("seen") if batch.index else None

    def hint_about_what_ran(run, call, result):
        return run.hint("seen") if result.ran else None

    two = batch(ScriptedCall("look", {"at": 1}, "dust"), ScriptedCall("look", {"at": 2}, "nothing"))
    heard, played = watched([two, say("done")], before_tool_call=only_first, after_tool_call=hint_about_what_ran)
    reported = [(made.args, result.status, result.text) for made, result in heard.of("after_tool_call")]
    assert reported == [({"at": 1}, "ok", "dust"), ({"at": 2}, "denied", "text of seen.deny")]
    # The note follows when every call of the batch is answered.
    assert [message.text for message in played.messages[2:5]] == ["dust", "text of seen.deny", "text of seen.hint"]


def test_hook_after_iteration():
    def stop(run, iteration):
        return run.stop("seen") if iteration.number == 2 else None

    heard, played = watched([call("look"), say("", reasoning="hm"), say("done")], after_iteration=stop)
    rounds = [(it.number, it.calls, it.usable) for (it,) in heard.of("after_iteration")]
    assert rounds == [(1, 1, True), (2, 0, False)]
    assert heard.names().index("after_iteration") > heard.names().index("after_tool_call")
    assert (played.outcome.status, played.outcome.iterations) == ("stopped", 2)


@pytest.mark.parametrize("action", ["stop", "ask"])
def test_hook_on_stop(action):
    def want(run, call, batch):
        return getattr(run, action)("seen", observed=3, limit=2)

    heard, played = watched([call("look"), say("done")], before_tool_call=want)
    ((stop,),) = heard.of("on_stop")
    assert isinstance(stop, StopReason)
    assert (stop.code, stop.rule, stop.action, stop.observed, stop.limit) == ("seen", "witness", action, 3, 2)
    assert (stop.message, stop.at, stop.call) == (f"text of seen.{action}", "test.yaml:1", 1)
    assert played.outcome.stop == stop


def written(path, rules):
    path.write_text(f"apiVersion: policyengine/v1\nkind: Policy\nname: house\nextensions: {rules}\n")


def test_hook_on_policy_loaded(tmp_path):
    registry, heard = witness()
    path = tmp_path / "policy.yaml"
    written(path, "{witness: {}}")
    engine = Engine(path, registry=registry)
    written(path, "{witness: {}, step_limit: {}}")
    assert engine.reload()
    seen = [(snapshot.generation, len(snapshot.rules)) for (snapshot,) in heard.of("on_policy_loaded")]
    assert seen == [(1, 1), (2, 2)]


def test_hook_on_policy_rejected(tmp_path):
    registry, heard = witness()
    path = tmp_path / "policy.yaml"
    written(path, "{witness: {}}")
    engine = Engine(path, registry=registry)
    written(path, "{witnes: {}}")
    assert not engine.reload()
    assert not engine.reload()  # the same content is told once
    (((problem,),),) = heard.of("on_policy_rejected")
    assert (problem.code, problem.position.line) == ("X401", 4)
    assert engine.snapshot.generation == 1


def test_the_order_of_hooks_in_a_run_with_one_call():
    heard, played = watched([call("look"), say("done")])
    assert played.messages[0] == Message("user", "test")
    one_round = ["before_model_call", "after_model_response", "after_parse"]
    assert heard.names() == [
        "on_policy_loaded",
        "run_start",
        "step_start",
        *one_round,
        "before_tool_call",
        "after_tool_call",
        "after_iteration",
        *one_round,
        "after_iteration",
        "step_end",
        "run_end",
    ]


def test_a_result_is_rewritten_before_the_model_reads_it():
    def shorter(run, call, result):
        return run.rewrite("seen", text=result.text[:4]) if result.ran else None

    _, played = watched([call("look", {}, "dust and more dust"), say("done")], after_tool_call=shorter)
    assert [message.text for message in played.messages if message.role == "tool"] == ["dust"]
    _, played = watched(
        [call("look", {}, "dust"), say("done")],
        after_tool_call=lambda run, call, result: run.rewrite("seen", call_id="x"),
    )
    assert [message.text for message in played.messages if message.role == "tool"] == ["dust"]
    faults = [vote.error for _, decision in played.decisions for vote in decision.votes if vote.error]
    assert faults == ["rewrite refused: ToolResult has no field 'call_id' that can be rewritten"]
