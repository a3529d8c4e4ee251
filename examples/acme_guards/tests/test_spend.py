"""`acme.spend` in real runs: a policy, a run, and what it decides about payments."""

from __future__ import annotations

import pytest

from policyengine import Batch, Engine, ToolCall, ToolResult

POLICY = """\
apiVersion: policyengine/v1
kind: Policy
name: payments
requires:
  extensions: {{acme-guards: ">=0.4,<1"}}
extensions:
  spend_review:
    use: acme.spend
    mode: {mode}
    with: {{limit: {limit}}}
"""


@pytest.fixture
def start(tmp_path):
    """Return a maker of runs under a policy with this one rule."""

    def make(limit: float = 100, mode: str = "enforce"):
        path = tmp_path / "payments.yaml"
        path.write_text(POLICY.format(limit=limit, mode=mode), encoding="utf-8")
        run = Engine(path).start_run()
        run.start("pay the bills")
        run.begin_iteration()
        return run

    return make


def payment(number: int, amount: object, tool: str = "pay_invoice") -> ToolCall:
    return ToolCall(f"call-{number}", tool, args={"amount": amount})


def pay(run, number: int, amount: object, status: str = "ok") -> str:
    """Report one payment to the run, carry it out if it is allowed, and return the decision."""
    call = payment(number, amount)
    decision = run.before_tool_call(call)
    result = ToolResult(call.id, "done", status) if decision.allowed else ToolResult(call.id, "refused", "denied")
    run.after_tool_call(call, result)
    return decision.action


def test_the_limit_may_be_reached_but_not_exceeded(start):
    run = start(limit=100)
    assert [pay(run, 1, 60), pay(run, 2, 40), pay(run, 3, 1)] == ["allow", "allow", "deny"]


def test_the_model_is_told_what_is_left(start):
    run = start(limit=100)
    pay(run, 1, 80)
    decision = run.before_tool_call(payment(2, 40))
    assert (decision.control.code, decision.control.observed, decision.control.limit) == ("spend_limit", 120, 100)
    assert "20 is left" in decision.message


def test_copies_in_one_batch_cannot_pass_side_by_side(start):
    run = start(limit=100)
    decisions = [run.before_tool_call(payment(index, 60), Batch("batch", index)).action for index in range(2)]
    assert decisions == ["allow", "deny"]


def test_a_refused_payment_costs_nothing_and_a_failed_one_does(start):
    run = start(limit=100)
    assert pay(run, 1, 500) == "deny"
    assert pay(run, 2, 60, status="error") == "allow"
    assert pay(run, 3, 60) == "deny"
    assert pay(run, 4, 40) == "allow"


def test_a_payment_that_never_ran_frees_its_amount(start):
    run = start(limit=100)
    call = payment(1, 100)
    assert run.before_tool_call(call).allowed
    run.after_tool_call(call, ToolResult(call.id, "not run", "not_run"))
    assert pay(run, 2, 100) == "allow"


@pytest.mark.parametrize("amount", [None, "12", True, -1, float("nan"), float("inf"), [1]])
def test_an_amount_that_cannot_be_judged_is_refused(start, amount):
    assert pay(start(), 1, amount) == "deny"


def test_other_tools_are_none_of_its_business(start):
    assert start(limit=0).before_tool_call(payment(1, 50, tool="get_invoice")).allowed


def test_under_warn_the_payment_runs_and_counts(start):
    run = start(limit=100, mode="warn")
    call = payment(1, 150)
    decision = run.before_tool_call(call)
    assert decision.allowed
    assert "not refused" in decision.notes[0].text
    run.after_tool_call(call, ToolResult(call.id, "paid"))
    assert run.before_tool_call(payment(2, 1)).votes[0].raw[0].observed == 151
