"""What a process pays for before it decides: what is imported, what is checked where, and how a load grows."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import ModuleType

import cerberus
import pytest

from policyengine import ConfigError, Engine, Extension, hookimpl
from policyengine.cli.loading import load
from policyengine.extensions import BUILTIN, CLASSES
from policyengine.plugins import registry
from policyengine.plugins.checks import faults_of
from policyengine.plugins.found import make_found
from policyengine.plugins.registry import builtin_registry
from policyengine.policy.load import load_policy_text
from policyengine.policy.schema import OVERLAY, OVERLAY_HEADER, POLICY, POLICY_HEADER, SETTINGS
from policyengine.policy.validator import prepare
from policyengine.snapshot import build_snapshot

HEAD = "apiVersion: policyengine/v1\nkind: Policy\nname: p\n"

UNNEEDED = (
    "asyncio",
    "difflib",
    "jinja2",
    "json5",
    "jsonschema_rs",
    "logging",
    "loguru",
    "multiprocessing",
    "policyengine.agent",
    "policyengine.engine",
    "policyengine.loop",
    "policyengine.parsing.parse",
    "policyengine.providers",
    "policyengine.run",
    "rich",
    "ssl",
    "subprocess",
    "watchfiles",
)
"""Modules that loading a policy does without; each takes longer to import than most of what a load does."""


def in_a_process(code: str) -> list[str]:
    """Run code in a process of its own; return the lines it printed on stderr."""
    command = [sys.executable, "-c", code]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 0, result.stderr
    return result.stderr.splitlines()


CHECK = """
import sys
import cerberus, msgspec, pluggy, yaml  # what they bring along is not ours to leave out
before = frozenset(sys.modules)
from policyengine.cli import main
sys.argv = ["policyengine", "check", "default"]
try: main()
except SystemExit as end: assert not end.code
print(*sorted(set(sys.modules) - before), sep="\\n", file=sys.stderr)
"""


@pytest.fixture(scope="module")
def imported() -> frozenset[str]:
    """Return what `policyengine check default` imports beyond the libraries that loading is built on."""
    return frozenset(in_a_process(CHECK))


@pytest.mark.parametrize("module", UNNEEDED)
def test_check_does_not_import(imported, module):
    assert "policyengine.snapshot" in imported
    assert module not in imported


def test_check_imports_the_extensions_that_the_policy_uses_and_no_other(imported):
    used = {rule.use for rule in load("default").policy.rules}
    assert {name for name in CLASSES if f"policyengine.extensions.{name}" in imported} == used


def test_metadata_of_packages_is_read_only_where_a_name_has_a_dot(monkeypatch):
    read = []
    monkeypatch.setattr(registry, "entry_point_sources", lambda: read.append("metadata") or [])
    found = registry.discover()
    assert found.get("step_limit") is not None
    assert found.allowing(()).get("no_such_guard") is None
    assert read == []
    assert found.get("acme.guard") is None
    assert found.allowing(()).get("acme.other") is None
    assert read == ["metadata"]


def test_packages_that_import_late_have_every_name_they_list():
    import policyengine.parsing
    import policyengine.plans
    import policyengine.results

    for package in (policyengine.parsing, policyengine.plans, policyengine.results):
        for name in package.__all__:
            assert getattr(package, name) is not None
        with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
            _ = package.nothing


# --- what is not checked in every process, checked once ------------------------------------------------------------


@pytest.mark.parametrize("cls", BUILTIN, ids=lambda cls: cls.name)
def test_every_built_in_extension_keeps_the_contract_with_its_options(cls):
    assert faults_of(cls, builtin=True) == ()


def test_every_built_in_extension_stands_in_the_module_of_its_name():
    assert [(cls.name, cls.__name__) for cls in BUILTIN] == list(CLASSES.items())
    assert [cls.__module__.rpartition(".")[2] for cls in BUILTIN] == list(CLASSES)
    assert builtin_registry().names() == tuple(CLASSES)


@pytest.mark.parametrize("schema", [POLICY_HEADER, OVERLAY_HEADER, SETTINGS, POLICY, OVERLAY])
def test_the_schemas_of_policy_files_are_valid_schemas(schema):
    prepare(schema)


def test_a_wrong_schema_would_be_found():
    with pytest.raises(cerberus.SchemaError):
        prepare({"mode": {"type": "string", "alowed": ["a"]}})


# --- what comes from elsewhere is checked at every load ------------------------------------------------------------


class Sender(Extension):
    name = "acme.sender"
    messages = {"tool_timeout": {"limit": 10}}

    @hookimpl
    def step_end(self, run):
        return None


class Wrong(Sender):
    name = "acme.wrong"
    options = {"most": {"type": "integer"}}


class Only:
    """A source of one extension."""

    def __init__(self, cls) -> None:
        self.found = make_found(cls)

    def get(self, name):
        return self.found if name == self.found.name else None


def test_a_broken_template_of_the_policy_is_refused_at_load(tmp_path):
    folder = tmp_path / "prompts" / "en"
    folder.mkdir(parents=True)
    (folder / "denied.txt").write_text("{{ nobody }}")
    (tmp_path / "p.yaml").write_text(f"{HEAD}prompts: [prompts]\nextensions: {{}}\n")
    with pytest.raises(ConfigError, match="'nobody' is undefined"):
        load(str(tmp_path / "p.yaml"))


def test_a_shipped_template_is_rendered_with_the_sample_of_a_foreign_extension():
    policy = load_policy_text(f"{HEAD}extensions: {{acme.sender: {{}}}}\n", registry=None)
    with pytest.raises(ConfigError, match="'tool' is undefined"):
        build_snapshot(policy, Only(Sender))


def test_options_of_a_foreign_extension_are_checked_when_it_is_found():
    assert any("needs `min` and `max`" in fault for fault in faults_of(Wrong))


# --- deciding ------------------------------------------------------------------------------------------------------

DECIDE = """
import sys
from policyengine import Engine, ToolCall, ToolResult
engine = Engine("default")
run = engine.start_run()
opened = []
watching = True
def heard(event, values):
    if watching and event in ("open", "import", "os.listdir", "os.scandir"):
        opened.append(f"{event} {values[0]}")
sys.addaudithook(heard)
run.start("find it")
messages = []
for number in range(12):
    run.begin_iteration()
    call = ToolCall(f"call-{number}", "search", '{"query": "tide"}')
    decision = run.before_tool_call(call)
    messages.append(decision.message)
    if decision.action == "allow":
        run.after_tool_call(call, ToolResult(call.id, "nothing"))
watching = False
assert any(messages), messages
print(*opened, sep="\\n", file=sys.stderr)
"""


def test_deciding_and_telling_why_reads_no_file_and_imports_nothing():
    assert [line for line in in_a_process(DECIDE) if line] == []


# --- the log -------------------------------------------------------------------------------------------------------


def test_the_log_is_set_up_before_the_first_word_and_once():
    code = (
        "import sys\n"
        "from policyengine.log import log, set_up\n"
        "set_up(lambda logger: print('first', file=sys.stderr))\n"
        "set_up(lambda logger: print('set up', 'loguru' in sys.modules, file=sys.stderr))\n"
        "print('loguru' in sys.modules, file=sys.stderr)\n"
        "log().disable('x'); log()\n"
    )
    assert in_a_process(code) == ["False", "set up True"]


def test_foreign_code_that_logs_finds_the_log_set_up(tmp_path):
    (tmp_path / "guard.py").write_text(
        "from loguru import logger\n"
        "from policyengine import Extension, hookimpl\n\n\n"
        "class Guard(Extension):\n"
        "    name = 'acme.guard'\n\n"
        "    def setup(self):\n"
        "        logger.info('nothing that anybody wants to know')\n"
        "        logger.warning('a warning')\n\n"
        "    @hookimpl\n"
        "    def step_end(self, run):\n"
        "        return None\n"
    )
    (tmp_path / "p.yaml").write_text(f"{HEAD}extensions: {{acme.guard: {{}}}}\n")
    arguments = ["policyengine", "check", str(tmp_path / "p.yaml"), "--folder", str(tmp_path)]
    code = f"import sys\nsys.argv = {arguments!r}\nfrom policyengine.cli import main\nmain()\n"
    assert in_a_process(code) == ["WARNING: a warning"]


# --- growth --------------------------------------------------------------------------------------------------------

USED = ("step_limit", "tool_failures", "stall_detector", "parse_failures", "repeat_message")


def written(folder: Path, rules: int) -> tuple[str, str]:
    """Write a policy of so many rules and an overlay on all of them; return their paths."""
    lines = [HEAD, "extensions:\n"]
    for number in range(rules):
        order = f", order: {{after: [rule_{number - 1}]}}" if number else ""
        lines.append(
            f"  rule_{number}: {{use: {USED[number % 5]}, timeout: 300ms, when: {{tool: ['a*', b]}}{order}}}\n"
        )
    lines.append("exceptions:\n")
    for number in range(rules):
        lines.append(f"  - {{rule: rule_{number}, expires: '2999-01-01', owner: me, reason: a trial}}\n")
    over = ["apiVersion: policyengine/v1\nkind: Overlay\ntarget: p\nextensions:\n"]
    over += [f"  rule_{number}: {{mode: warn}}\n" for number in range(rules)]
    policy, overlay = folder / f"{rules}.yaml", folder / f"over-{rules}.yaml"
    policy.write_text("".join(lines))
    overlay.write_text("".join(over))
    return str(policy), str(overlay)


def lines_to_load(folder: Path, rules: int) -> int:
    """Return how many lines of Python are executed to load a policy of so many rules."""
    policy, overlay = written(folder, rules)
    executed = 0

    def count(frame, event, value):
        nonlocal executed
        executed += event == "line"
        return count

    before = sys.gettrace()
    sys.settrace(count)
    try:
        loaded = load(policy, [overlay])
    finally:
        sys.settrace(before)
    assert len(loaded.snapshot.extensions) == rules
    return executed


def test_every_further_rule_costs_the_same_to_load(tmp_path):
    lines_to_load(tmp_path, 5)  # what is imported and cached once is no cost of a rule
    few, some, many = (lines_to_load(tmp_path, rules) for rules in (20, 60, 140))
    assert (many - some) / 80 <= 1.02 * (some - few) / 40


def test_an_engine_takes_its_rules_apart_though_their_class_is_registered_once():
    policy = load_policy_text(
        f"{HEAD}extensions:\n  one: {{use: step_limit, with: {{max_steps: 5}}}}\n"
        "  two: {use: step_limit, with: {max_steps: 9}}\n",
        registry=builtin_registry(),
    )
    snapshot = Engine(policy).snapshot
    for table in snapshot.tables.values():
        for entry in table.entries:
            assert entry.extension is snapshot.extensions[entry.rule.id]
    assert [snapshot.extensions[name].options.max_steps for name in ("one", "two")] == [5, 9]
    assert sum(len(table.entries) for table in snapshot.tables.values()) >= 2


def test_a_class_that_claims_to_be_built_in_is_checked_as_the_stranger_it_is(monkeypatch):
    from policyengine.extension import Extension, is_shipped

    class Claim(Extension):
        name = "acme.claim"

    Claim.__module__ = "policyengine.extensions.step_limit"
    assert not is_shipped(Claim)
    own = ModuleType("policyengine.extensions.claim")
    own.Claim = Claim
    monkeypatch.setitem(sys.modules, own.__name__, own)
    Claim.__module__ = own.__name__
    assert not is_shipped(Claim), "a module of its own under that name makes no difference"
    assert all(is_shipped(cls) for cls in BUILTIN)
