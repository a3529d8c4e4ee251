"""Rules of our own for the tests of adapters: they answer what the texts say."""

from __future__ import annotations

from policyengine import Engine
from policyengine.extension import Extension
from policyengine.hooks import hookimpl
from policyengine.policy.load import load_policy_text
from policyengine.testing import ListedRegistry, ManualClock
from tests.hosts.scenarios import BUILTINS, HEAD

RULES = "extensions:\n  rules: {}\n"


class Rules(Extension):
    """Refuse page 7 and the hand-off to `forbidden`, ask about `pay`; results and responses say what else to do."""

    name = "rules"
    rewrites_calls = True
    messages = {"rules.said": {}}
    templates = {"en": {"rules.said": "rules said so"}}

    def answers(self):
        return {
            "after_model_response": ("retry",),
            "after_tool_call": ("rewrite", "stop"),
            "before_tool_call": ("ask", "deny"),
        }

    @hookimpl
    def after_model_response(self, run, response):
        return run.retry("rules", kind="rules.said") if response.text == "once more" else None

    @hookimpl
    def after_tool_call(self, run, call, result):
        if result.text == "secret":
            return run.rewrite("rules", text="hidden")
        return run.stop("rules", kind="rules.said") if result.text == "stop" else None

    @hookimpl
    def before_tool_call(self, run, call, batch):
        if call.args == {"page": 7} or call.name == "transfer_to_forbidden":
            return run.deny("rules", kind="rules.said")
        return run.ask("rules", kind="rules.said") if call.name == "pay" else None


class Asking(Extension):
    """Ask about every call; it does not declare what it answers."""

    name = "acme.asking"
    messages = {"acme.ask": {}}
    templates = {"en": {"acme.ask": "May it?"}}

    @hookimpl
    def before_tool_call(self, run, call, batch):
        return run.ask("asking", "acme.ask")


OWN = ListedRegistry(Rules, trusted=True, others=BUILTINS)


def engine_of(policy, **options):
    """Return an engine under a policy that may use `rules`."""
    loaded = load_policy_text(HEAD + policy, registry=OWN)
    return Engine(loaded, registry=OWN, clock=ManualClock(), enforce_time=False, **options)
