"""Proofs go through the real loop: what cannot fire, what is masked and what is broken is told apart."""

import pytest

from policyengine import Extension, Proof, call, hookimpl
from policyengine.plugins.registry import builtin_registry
from policyengine.policy.files import shipped_policies
from policyengine.policy.load import load_policy_text
from policyengine.prove import prove
from policyengine.testing import ListedRegistry, policy, rule

HEAD = "apiVersion: policyengine/v1\nkind: Policy\nname: t\n"
REGISTRY = builtin_registry()
SHIPPED = sorted(shipped_policies())
"""Every policy that ships, so that none is forgotten."""


def proved(body):
    return {entry.label: entry for entry in prove(load_policy_text(HEAD + body, registry=REGISTRY), REGISTRY)}


@pytest.mark.parametrize("name", SHIPPED)
def test_every_rung_of_every_shipped_policy_fires_in_the_whole_policy(name):
    from policyengine.policy.load import load_policy

    entries = prove(load_policy(name, registry=REGISTRY), REGISTRY)
    assert len(entries) >= (1 if "/" in name else 5)
    assert [entry for entry in entries if not entry.ok or entry.whole != f"fires at {entry.expect}"] == []


def test_a_rung_behind_a_rule_that_ends_the_run_first_is_masked():
    entries = proved(
        "extensions:\n  stall_detector: {with: {repeat: {hint: 2, stop: 9}}}\n  step_limit: {with: {max_steps: 4}}\n"
    )
    assert (entries["repeat.stop"].alone, entries["repeat.stop"].whole) == ("fires at 9", "masked by step_limit")
    assert not entries["repeat.stop"].ok
    assert entries["repeat.hint"].ok


def test_a_selector_does_not_make_a_rule_unprovable():
    entries = proved("extensions: {step_limit: {when: {agent: crawler}, with: {max_steps: 3}}}\n")
    assert entries["max_steps"].ok


class Quota(Extension):
    """Refuses the third call; breaks in the way its option says."""

    name = "test.quota"
    options = {"broken": {"type": "string", "default": ""}}
    messages = {"quota.deny": {"tool": "send"}}
    templates = {"en": {"quota.deny": "No more of {{ tool }}."}}

    @hookimpl
    def before_tool_call(self, run, call, batch):
        if call.name != "send" or run.iteration < 3:
            return None
        if self.options.broken == "raise":
            raise ZeroDivisionError("quota")
        data = {} if self.options.broken == "template" else {"tool": call.name}
        return run.deny("quota", **data)

    def proofs(self):
        yield Proof(
            "quota", "deny", "quota", 3, (call("send", {"n": 1}), call("send", {"n": 2}), call("send", {"n": 3}))
        )


@pytest.mark.parametrize(("broken", "fault"), [("", ""), ("raise", "ZeroDivisionError"), ("template", "tool")])
def test_a_rule_that_breaks_while_it_is_proved_says_so(broken, fault):
    (entry,) = prove(policy(rule("test.quota", {"broken": broken})), ListedRegistry(Quota))
    assert entry.ok is (not broken)
    assert fault in entry.fault


def test_a_rule_without_sequences_is_unproven_not_failed():
    class Silent(Extension):
        name = "test.silent"

        @hookimpl
        def after_iteration(self, run, iteration):
            """Do nothing."""

    (entry,) = prove(policy(rule("test.silent")), ListedRegistry(Silent))
    assert (entry.label, entry.ok) == ("unproven", True)
