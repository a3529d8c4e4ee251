"""The rules between modules, read from the source: who imports whom, and who may catch everything."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CORE = sorted((ROOT / "policyengine").rglob("*.py"))
EXTENSIONS = sorted((ROOT / "extensions").rglob("*.py"))

PURE = ("actions", "decision", "identity", "messages", "runstate", "remedies")
PURE += tuple(f"loop/{path.stem}" for path in sorted((ROOT / "policyengine" / "loop").glob("*.py")))
PURE += tuple(f"plans/{path.stem}" for path in sorted((ROOT / "policyengine" / "plans").glob("*.py")))
IMPURE = {"loguru", "os", "pathlib", "pluggy", "random", "socket", "threading", "time", "yaml"}

BROAD = {
    "agent.py": "a tool's exception is an event of the run, whatever it is",
    "shared/ledger.py": "what was reserved for whoever was interrupted is given back; raised again",
    "stores/__init__.py": "whoever waits in a line leaves it, whatever interrupts them; raised again",
    "durable/heartbeat.py": "whatever a store raises, the thread goes on that renews the leases of the others",
    "run.py": "what watches a run must not be able to end it",
    "cli/__init__.py": "the end of the process: the exit code tells a crash from a finding",
    "control/server.py": "a reload runs foreign code; its failure is told to the client, and the server goes on",
    "dispatch.py": "a guard's exception is an answer: its rule's on_error decides",
    "engine.py": "an observer that raises must not undo a reload",
    "extension_check.py": "types and defaults of a state are the extension's own; what they raise is reported",
    "hosts/closed.py": "whatever fails in an adapter refuses: what an exception does there is up to the host",
    "hosts/guard.py": "what a tool raises is the result of its call",
    "hosts/langchain.py": "what a tool raises is reported, and raised again",
    "hosts/openai_agents.py": "what a tool or a run raises is reported, and raised again",
    "hosts/pydantic_ai.py": "what a tool or a run raises is reported, and raised again",
    "hook/entry.py": "any exit code but 0 and 2 lets the host of a hook go on",
    "masking.py": "the text of a foreign exception is foreign code; a traceback without it is shown",
    "plugins/checks.py": "a metaclass is foreign code that runs when its class is looked at; its failure is reported",
    "plugins/folder.py": "running a drop-in file is running foreign code; its failure is reported with file and line",
    "plugins/packages.py": "damaged metadata of one package must not hide all others",
    "plugins/registry.py": "importing an installed package is running foreign code; its failure is reported with it",
    "policy/reload.py": "a watch that ends silently would leave every later edit unseen",
    "policy/rules.py": "an extension's check_options is foreign code; its failure is a positioned problem",
    "probing.py": "a probed tool is foreign code, and what it raises is what the probe is to find out",
    "providers/errors/unwrap.py": "attributes of an SDK's exception are foreign code; one that fails tells nothing",
    "providers/fallback.py": "whatever a model raises is counted, and raised on",
    "providers/registry.py": "importing an installed protocol is running foreign code; its failure is reported with it",
    "providers/sdk.py": "an SDK may raise anything about a request; what is no failed request is raised on",
    "recordings/readers.py": "importing a reader is running foreign code; its failure is reported with its package",
    "results/plain.py": "methods of a tool's return value are foreign code; one that fails is shown as such",
    "selftest.py": "the self-test calls every guard once to hear what it raises",
    "signatures.py": "annotations are foreign code, and only an aid; what cannot be read says nothing",
    "snapshot.py": "an extension's constructor is foreign code; its failure is a positioned problem",
    "stores/redis.py": "a change that fails may have seen half of another one; it is raised again, or asked again",
    "tools/mcp.py": "a transport may raise anything; what it raises is the failed call or the server that cannot start",
    "toolset.py": "importing the module of tools is running foreign code; its failure is told to who named it",
    "workers.py": "a guard's exception crosses from its worker thread to the deciding thread",
}
"""Every file that may catch all exceptions, and why nothing narrower will do."""


def imports(path: Path) -> Iterator[tuple[int, str, str]]:
    """Yield line, module and name of every import of a file (`name` is empty for `import module`).

    Relative imports are given with their dots.
    """
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), str(path))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name, ""
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                yield node.lineno, "." * node.level + (node.module or ""), alias.name


def absolute(path: Path, module: str) -> str:
    """Return the absolute name of a module that a file of the core imports."""
    level = len(module) - len(module.lstrip("."))
    if not level:
        return module
    package = path.relative_to(ROOT).with_suffix("").parts[: -1 if path.name != "__init__.py" else None]
    package = package[:-1] if path.name == "__init__.py" else package
    base = package[: len(package) - (level - 1)]
    return ".".join((*base, *filter(None, module.lstrip(".").split("."))))


def catches_everything(node: ast.AST) -> bool:
    """Whether a node is `except:`, `except Exception`, `except BaseException`, or `suppress` of one of them."""
    broad = ("Exception", "BaseException")
    if isinstance(node, ast.ExceptHandler):
        kinds = node.type.elts if isinstance(node.type, ast.Tuple) else [node.type]
        return any(kind is None or getattr(kind, "id", "") in broad for kind in kinds)
    if isinstance(node, ast.Call):
        name = getattr(node.func, "id", getattr(node.func, "attr", ""))
        return name == "suppress" and any(getattr(kind, "id", "") in broad for kind in node.args)
    return False


def test_the_core_never_imports_an_extension():
    found = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in CORE
        for line, module, name in imports(path)
        if f"{absolute(path, module)}.{name}.".startswith("policyengine.extensions.")
    ]
    assert found == []


def test_extensions_import_only_the_public_package():
    def allowed(module: str, name: str) -> bool:
        if module.startswith("."):
            return True
        if module == "policyengine":
            return bool(name)
        return module.split(".")[0] in sys.stdlib_module_names or module.split(".")[0] == "msgspec"

    found = [
        f"{path.relative_to(ROOT)}:{line} imports {module}"
        for path in EXTENSIONS
        for line, module, name in imports(path)
        if not allowed(module, name)
    ]
    assert found == []


def test_what_extensions_import_from_the_package_is_public():
    import policyengine

    found = [
        f"{path.relative_to(ROOT)}:{line} imports {name}"
        for path in EXTENSIONS
        for line, module, name in imports(path)
        if module == "policyengine" and name not in policyengine.__all__
    ]
    assert found == []


@pytest.mark.parametrize("module", PURE)
def test_pure_modules_import_nothing_that_touches_the_world(module):
    path = ROOT / "policyengine" / f"{module}.py"
    assert {name.split(".")[0] for _, name, _ in imports(path)} & IMPURE == set()


def test_only_listed_files_catch_everything():
    found = {
        path.relative_to(ROOT / "policyengine").as_posix()
        for path in CORE
        if any(map(catches_everything, ast.walk(ast.parse(path.read_text(encoding="utf-8")))))
    }
    assert found == set(BROAD)
    for path in EXTENSIONS:
        assert not any(map(catches_everything, ast.walk(ast.parse(path.read_text(encoding="utf-8"))))), path


def test_the_reader_of_imports_sees_every_way_to_import(tmp_path):
    path = ROOT / "policyengine" / "policy" / "imagined.py"
    assert absolute(path, "..extensions") == "policyengine.extensions"
    assert absolute(path, ".") == "policyengine.policy"
    assert absolute(path.with_name("__init__.py"), ".model") == "policyengine.policy.model"
    source = tmp_path / "source.py"
    source.write_text("import os.path\nfrom . import x\nif True:\n    from policyengine import extensions as e\n")
    assert list(imports(source)) == [(1, "os.path", ""), (2, ".", "x"), (4, "policyengine", "extensions")]


@pytest.mark.parametrize(
    ("source", "broad"),
    [
        ("try: x\nexcept: y", True),
        ("try: x\nexcept Exception: y", True),
        ("try: x\nexcept (ValueError, BaseException): y", True),
        ("with contextlib.suppress(Exception): x", True),
        ("try: x\nexcept (ValueError, KeyError): y", False),
    ],
)
def test_the_reader_of_handlers_sees_every_way_to_catch_everything(source, broad):
    assert any(map(catches_everything, ast.walk(ast.parse(source)))) is broad
