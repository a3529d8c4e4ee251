"""The registration checks, one row per way to break the contract. The same under every supported pluggy."""

from __future__ import annotations

import functools
import inspect
from pathlib import Path
from types import FunctionType
from typing import Any

import msgspec
import pluggy
import pytest

from policyengine.errors import ExtensionError
from policyengine.extension import Extension
from policyengine.hooks import BY_METHOD, HOOKS, PROJECT, HookSpecs, hookimpl
from policyengine.plugins.checks import check_extension, find_faults, implemented_hooks


def good(self, run, iteration):
    return None


def make(name: str = "acme.guard", **members: Any) -> type[Extension]:
    """Return a valid third-party extension class, changed by `members`."""
    hook = {} if "after_iteration" in members else {"after_iteration": hookimpl(copy_of(good))}
    return type("Guard", (Extension,), {"name": name, **hook, **members})


def copy_of(function):
    """Return an equal function: the marker is an attribute, so one function must not be shared between rows."""
    return FunctionType(
        function.__code__, function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )


def unmarked(self, run, call):
    return None


async def asynchronous(self, run, iteration):
    return None


async def asynchronous_generator(self, run, iteration):
    yield None


def generator(self, run, iteration):
    yield None


def keyword_only(self, run, *, iteration):
    return None


def defaulted(self, run, iteration=None):
    return None


def variadic(self, *values):
    return None


def open_ended(self, run, **rest):
    return None


def misspelt_parameter(self, run, iteratoin):
    return None


def foreign_parameter(self, run, call):
    return None


def selfless(run, iteration):
    return None


def bare():
    return None


class Frozen(msgspec.Struct, frozen=True):
    count: int = 0


class Bad(msgspec.Struct):
    count: int
    seen: list[str]
    total: int = 0


FAULTS: dict[str, tuple[dict[str, Any], str]] = {
    "unknown hook": (
        {"before_toolcall": hookimpl(lambda self, run: None)},
        r"before_toolcall \(line \d+\): there is no such hook point; did you mean 'before_tool_call'\?",
    ),
    "unknown hook, nothing close": ({"zzz": hookimpl(lambda self, run: None)}, r"zzz .*there is no such hook point$"),
    "dropped phase": (
        {"hist_add_warning": hookimpl(lambda self, run: None)},
        "no such hook point; did you mean 'hist_add_warning_",
    ),
    "forgotten mark": (
        {"before_tool_call": unmarked},
        r"before_tool_call \(line \d+\): a method with the name of a hook point must be marked with @hookimpl",
    ),
    "misspelt and forgotten": ({"after_iterations": good}, "looks like the hook point 'after_iteration'"),
    "camel case and forgotten": ({"beforeToolCall": unmarked}, "looks like the hook point 'before_tool_call'"),
    "forgotten on a property": ({"on_stop": property(lambda self: None)}, "must be marked with @hookimpl"),
    "wrapper": (
        {"after_iteration": hookimpl(wrapper=True)(copy_of(generator))},
        r"@hookimpl\(wrapper=...\) is refused: a hook wrapper could hide the answers of other rules",
    ),
    "old wrapper": (
        {"after_iteration": hookimpl(hookwrapper=True)(copy_of(generator))},
        r"@hookimpl\(hookwrapper=...\) is refused",
    ),
    "tryfirst": ({"after_iteration": hookimpl(tryfirst=True)(copy_of(good))}, "order of rules comes from the policy"),
    "trylast": ({"after_iteration": hookimpl(trylast=True)(copy_of(good))}, "order of rules comes from the policy"),
    "optional": ({"after_iteration": hookimpl(optionalhook=True)(copy_of(good))}, r"@hookimpl\(optionalhook=...\)"),
    "optional and misspelt": (
        {"after_iteratoin": hookimpl(optionalhook=True)(copy_of(good))},
        "no such hook point; did you mean 'after_iteration'",
    ),
    "specname": (
        {"on_stop": hookimpl(specname="after_iteration")(lambda self, run: None)},
        "name the method after its hook point",
    ),
    "async": ({"after_iteration": hookimpl(copy_of(asynchronous))}, "hooks are synchronous"),
    "async generator": ({"after_iteration": hookimpl(asynchronous_generator)}, "hooks are synchronous"),
    "generator": ({"after_iteration": hookimpl(copy_of(generator))}, "a generator is not an answer"),
    "keyword-only": ({"after_iteration": hookimpl(keyword_only)}, "parameter 'iteration' is keyword-only"),
    "default": ({"after_iteration": hookimpl(defaulted)}, "parameter 'iteration' has a default"),
    "args": ({"after_iteration": hookimpl(variadic)}, r"`\*values` is refused"),
    "kwargs": ({"after_iteration": hookimpl(open_ended)}, r"`\*\*rest` is refused"),
    "misspelt parameter": (
        {"after_iteration": hookimpl(misspelt_parameter)},
        r"unknown parameter 'iteratoin'; did you mean 'iteration'\? \(it may take any of: run, iteration\)",
    ),
    "foreign parameter": ({"after_iteration": hookimpl(foreign_parameter)}, r"unknown parameter 'call' \(it may"),
    "no self": ({"after_iteration": hookimpl(selfless)}, "the first parameter must be `self`"),
    "no parameter": ({"after_iteration": hookimpl(bare)}, "the first parameter must be `self`"),
    "static method": ({"after_iteration": hookimpl(staticmethod(copy_of(good)))}, "not a staticmethod"),
    "static method, marked inside": ({"after_iteration": staticmethod(hookimpl(copy_of(good)))}, "not a staticmethod"),
    "class method": ({"after_iteration": classmethod(hookimpl(copy_of(good)))}, "not a classmethod"),
    "property": ({"after_iteration": property(hookimpl(copy_of(good)))}, "not a property"),
    "no hook": ({"after_iteration": None}, "it implements no hook point"),
    "no name": ({"name": ""}, "class Guard has no name"),
    "name of another type": ({"name": 7}, "class Guard has no name"),
    "no dot": ({"name": "spend"}, "'spend' must have the form `vendor.name`"),
    "empty part": ({"name": "acme."}, "must have the form"),
    "space in the name": ({"name": "acme.spend limit"}, "must have the form"),
    "newer api": ({"api": 2}, "written for hook API 2; this engine supports api 1"),
    "api is no number": ({"api": True}, "written for hook API True"),
    "state version": ({"state_version": 0}, "state_version must be a whole number from 1"),
    "scope": ({"scope": "session"}, "scope must be one of conversation, run, step, iteration, not 'session'"),
    "state is no struct": ({"state": dict}, "state must be a msgspec.Struct class"),
    "state is an instance": ({"state": Bad(1, [])}, "state must be a msgspec.Struct class"),
    "state without defaults": ({"state": Bad}, "every field of state Bad needs a default; without one: count, seen"),
    "frozen state": ({"state": Frozen}, "state Frozen must not be frozen"),
    "messages": ({"messages": ["spend"]}, "messages must be a mapping"),
    "sample data": ({"messages": {"spend.deny": "text"}}, r"messages\['spend.deny'\] must be a mapping of sample data"),
    "templates": ({"templates": "text"}, "templates must be a mapping of languages"),
    "template text": ({"templates": {"en": {"spend.deny": None}}}, r"templates\['en'\] must be a mapping"),
    "options": ({"options": [1]}, "options must be a mapping"),
    "options as a property": ({"options": property(lambda self: {})}, "options must be a mapping"),
    "schema": ({"options": {"limit": {"min": 1}}}, r"options: .*limit"),
    "schema with a typo": ({"options": {"limit": {"typ": "integer"}}}, r"options: .*limit"),
}


@pytest.mark.parametrize(("members", "expected"), FAULTS.values(), ids=FAULTS.keys())
def test_a_class_that_breaks_the_contract_is_refused_with_file_and_name(members, expected):
    cls = make(**members)
    with pytest.raises(ExtensionError, match=expected) as caught:
        check_extension(cls, "acme/guards.py")
    name = cls.name if isinstance(cls.name, str) and cls.name else "Guard"
    assert caught.value.extension == name
    assert caught.value.origin == "acme/guards.py"
    assert str(caught.value).startswith(f"extension {name!r} (acme/guards.py): ")


def test_a_valid_class_gives_its_hooks_in_the_order_of_the_table():
    cls = make(
        hist_add_warning_end=hookimpl(lambda self, run, warning: None),
        before_tool_call=hookimpl(lambda self, call: None),
        run_start=hookimpl(lambda self: None),
        on_stop=hookimpl(lambda self, run, stop: None),
        on_policy_loaded=hookimpl(lambda self, snapshot: None),
    )
    assert check_extension(cls, "x.py") == (
        "run_start",
        "hist_add_warning.end",
        "before_tool_call",
        "after_iteration",
        "on_stop",
        "on_policy_loaded",
    )


@pytest.mark.parametrize("method", BY_METHOD)
def test_every_hook_point_can_be_implemented_with_its_complete_payload(method):
    parameters = ", ".join(inspect.signature(getattr(HookSpecs, method)).parameters)
    scope: dict[str, Any] = {}
    exec(f"def implementation({parameters}): return None", scope)
    cls = type("Guard", (Extension,), {"name": "acme.guard", method: hookimpl(scope["implementation"])})
    assert check_extension(cls, "x.py") == (BY_METHOD[method].name,)


def test_the_parameters_of_a_spec_are_run_and_the_payload_of_the_hook_table():
    for point in HOOKS.values():
        names = list(inspect.signature(getattr(HookSpecs, point.method)).parameters)[1:]
        assert [name for name in names if name != "run"] == list(point.payload)
        assert names.index("run") == 0 if "run" in names else point.name.startswith("on_policy_")


def test_helpers_with_ordinary_names_are_nobodys_hook():
    cls = make(
        total=lambda self: 0,
        run_totals=lambda self: 0,
        _after_iteration=good,
        limit=property(lambda self: 1 / 0),
        on_stop_codes=("a",),
        proofs=lambda self: (),
        setup=lambda self: None,
    )
    assert list(find_faults(cls)) == []


def test_properties_are_not_evaluated():
    seen = []
    cls = make(expensive=property(lambda self: seen.append(1)))
    check_extension(cls, "x.py")
    assert seen == []


def test_a_decorated_hook_is_judged_by_the_signature_it_shows():
    def counted(function):
        @functools.wraps(function)
        def inner(*args):
            return function(*args)

        return inner

    assert implemented_hooks(make(after_iteration=hookimpl(counted(copy_of(good))))) == ("after_iteration",)
    assert list(find_faults(make(after_iteration=counted(hookimpl(copy_of(good)))))) == []
    with pytest.raises(ExtensionError, match="hooks are synchronous"):
        check_extension(make(after_iteration=hookimpl(counted(asynchronous))), "x.py")


def test_an_override_must_be_marked_again():
    base = make()
    derived = type("Derived", (base,), {"after_iteration": copy_of(good)})
    with pytest.raises(ExtensionError, match="must be marked with @hookimpl"):
        check_extension(derived, "x.py")
    assert check_extension(type("Same", (base,), {}), "x.py") == ("after_iteration",)


def test_all_faults_are_reported_at_once():
    cls = make(name="spend", api=9, after_iteration=hookimpl(copy_of(asynchronous)), state=dict)
    with pytest.raises(ExtensionError) as caught:
        check_extension(cls, "x.py")
    for part in ("must have the form", "hook API 9", "hooks are synchronous", "msgspec.Struct"):
        assert part in caught.value.detail


def test_built_in_names_have_no_dot():
    assert check_extension(make(name="step_limit"), "x.py", builtin=True) == ("after_iteration",)
    with pytest.raises(ExtensionError, match="must be one word without a dot"):
        check_extension(make(name="core.step_limit"), "x.py", builtin=True)


def test_the_line_of_the_class_is_added_where_it_is_known():
    class Nameless(Extension):
        @hookimpl
        def after_iteration(self, run, iteration):
            return None

    with pytest.raises(ExtensionError) as caught:
        check_extension(Nameless, Path(__file__).name)
    file, line = caught.value.origin.split(":")
    assert file == Path(__file__).name
    assert "class Nameless(Extension):" in Path(__file__).read_text(encoding="utf-8").splitlines()[int(line) - 1]


def test_an_accepted_class_registers_with_pluggy_and_gets_values_not_defaults():
    seen = []
    cls = make(after_iteration=hookimpl(lambda self, iteration, run: seen.append((run, iteration))))
    check_extension(cls, "x.py")
    manager = pluggy.PluginManager(PROJECT)
    manager.add_hookspecs(HookSpecs)
    manager.register(cls({}), name="rule")
    manager.check_pending()
    (implementation,) = manager.hook.after_iteration.get_hookimpls()
    assert implementation.argnames == ("iteration", "run")
    manager.hook.after_iteration(run="run", iteration=3)
    assert seen == [("run", 3)]
