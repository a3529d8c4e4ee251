"""Write the skeleton of a package with one extension: everything that a finished one has, and small.

Knows: the files of such a package. Must not know: the command line.

In the texts `@name@` and the like stand for what a package calls itself (see `names`).
"""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

from policyengine.errors import UsageError

LONGEST = 40
"""How long a name may be: lines of the generated code must stay short enough."""

_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z][a-z0-9]*)+\Z")
_RESERVED = ("agent-policyengine", "policyengine")


def scaffold(name: str, output: Path) -> tuple[Path, ...]:
    """Write the package `name` into a new folder of that name below `output`, and return its files.

    Raises:
        UsageError: the name is none that a package can have, the folder exists, or it cannot be written.
    """
    check_name(name)
    folder = output / name
    words = names(name)
    written = []
    try:
        folder.mkdir(parents=True)
        for path, text in FILES.items():
            file = folder / _filled(path, words)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(_filled(text, words), encoding="utf-8")
            written.append(file)
    except FileExistsError:
        raise UsageError(f"{folder} exists already; remove it, or choose another --output") from None
    except OSError as error:
        raise UsageError(f"cannot write {folder}: {error.strerror}") from error
    return tuple(written)


def check_name(name: str) -> None:
    """Refuse a name from which no name of a package, a module and an extension can be made; raises `UsageError`."""
    if not _NAME.match(name):
        proper = "-".join(re.findall(r"[a-z][a-z0-9]*", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", name).lower()))
        if not proper:
            proper = "acme-guard"
        elif "-" not in proper:
            proper = f"acme-{proper}"
        raise UsageError(
            f"{name!r} is no name for a package of extensions: lower-case words with hyphens, the first one yours;"
            f" for example {proper}"
        )
    if len(name) > LONGEST:
        raise UsageError(f"{name!r} is too long: at most {LONGEST} characters")
    if name in _RESERVED or name.startswith("policyengine-"):
        raise UsageError(f"{name!r} is the engine's own name; begin with yours")
    if name.startswith("test"):
        raise UsageError(f"{name!r} would have a class that test runners take for a test; begin with another word")
    module = names(name)["package"]
    if find_spec(module) is not None:
        raise UsageError(f"a module {module!r} is installed already; choose another name")


def names(name: str) -> dict[str, str]:
    """Return what the parts of a package are called: `acme-guard` has the extension `acme.guard`."""
    first, *rest = name.split("-")
    return {
        "name": name,
        "package": name.replace("-", "_"),
        "extension": f"{first}.{'_'.join(rest)}",
        "cls": "".join(part.capitalize() for part in (first, *rest)),
    }


def _filled(text: str, words: dict[str, str]) -> str:
    for word, value in words.items():
        text = text.replace(f"@{word}@", value)
    return text


FILES: dict[str, str] = {
    "pyproject.toml": """\
[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"

[project]
name = "@name@"
version = "0.1.0"
description = "A guard for policyengine."
readme = "README.md"
requires-python = ">=3.11"
dependencies = ["agent-policyengine>=0.1,<1"]

[project.optional-dependencies]
test = ["pytest>=8.2"]

# Name = the extension's name, so that it is known without importing the package.
[project.entry-points."policyengine.extensions"]
"@extension@" = "@package@:@cls@"

[tool.setuptools.packages.find]
where = ["src"]

[tool.setuptools.package-data]
@package@ = ["py.typed"]

[tool.pytest.ini_options]
testpaths = ["tests"]
addopts = ["--import-mode=importlib"]
filterwarnings = ["error"]

[tool.ruff]
line-length = 120
target-version = "py311"
src = ["src"]

[tool.ruff.lint]
select = ["E", "F", "W", "I", "B", "UP", "D1"]

[tool.ruff.lint.per-file-ignores]
"tests/**" = ["D1"]
""",
    "README.md": """\
# @name@

A guard for policyengine: `@extension@` refuses calls of some tools beyond a number per run.

| option | meaning | default |
|---|---|---|
| `limit` | how many calls a run may make | 3 |
| `tools` | name patterns of the tools that count, together | `["*"]` |

Being installed does not make it active.
A policy names the package and uses the extension, as `policies/@name@.yaml` does.

## Work on it

```sh
pip install -e '.[test]'
pytest
policyengine extensions check @name@
policyengine check policies/@name@.yaml
policyengine prove policies/@name@.yaml
policyengine test policies --coverage
```

1. `src/@package@/__init__.py`: the options with bounds, the state, the hook, the proofs.
2. `src/@package@/templates.py`: what the model is told.
3. `tests/`: what the guard does alone. `policies/@name@.test.yaml`: what it does in a policy.
4. `pyproject.toml`: the entry point, which has the name of the extension.
""",
    ".gitignore": """\
__pycache__/
*.egg-info/
.pytest_cache/
.ruff_cache/
.venv/
build/
dist/
""",
    "src/@package@/__init__.py": '''\
"""Refuse calls of some tools once a run has made enough of them.

Knows: names of tools, and how many calls were let through.
Must not know: what a tool does, the model, other guards.
"""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase

import msgspec
from policyengine import Action, Extension, Proof, RunView, ToolCall, call, hookimpl

from .templates import TEMPLATES

__all__ = ["CODE", "@cls@", "Counted"]

CODE = "@package@"
"""The machine reason of a refusal."""


class Counted(msgspec.Struct):
    """How many calls of this run were let through."""

    calls: int = 0


class @cls@(Extension):
    """Refuse calls of `tools` beyond `limit` per run."""

    name = "@extension@"
    api = 1
    options = {
        "limit": {"type": "integer", "min": 1, "max": 1000, "default": 3, "meta": {"stricter": "lower"}},
        "tools": {"type": "list", "schema": {"type": "string", "minlength": 1}, "minlength": 1, "default": ["*"]},
    }
    state = Counted
    state_version = 1
    scope = "run"
    messages = {f"{CODE}.deny": {"tool": "search", "observed": 4, "limit": 3}}
    templates = TEMPLATES

    @hookimpl
    def before_tool_call(self, run: RunView, call: ToolCall) -> Action | None:
        """Judge a call against those that were let through before it."""
        if not any(fnmatchcase(call.name, pattern) for pattern in self.options.tools):
            return None
        number = run.state.calls + 1
        if number > self.options.limit:
            return run.deny(CODE, observed=number, limit=self.options.limit, tool=call.name)
        run.state.calls = number
        return None

    def proofs(self) -> Iterable[Proof]:
        """Make one call more than is allowed."""
        limit = self.options.limit
        tool = self.options.tools[0].replace("*", "probe").replace("?", "x")
        yield Proof("limit", "deny", CODE, limit + 1, tuple(call(tool, {"number": n}) for n in range(limit + 1)))
''',
    "src/@package@/templates.py": '''\
"""What the model is told, by language and kind. A policy can replace every text.

`advisory` is true where `mode: warn` made a mere hint of a refusal.
"""

TEMPLATES = {
    "en": {
        "@package@.deny": (
            "{{ tool }} was {% if advisory %}not {% endif %}refused: this is call {{ observed }}, and the limit is"
            " {{ limit }}. Work with what you have, or tell the user what is missing."
        ),
    },
}
''',
    "src/@package@/py.typed": "",
    "tests/test_@package@.py": '''\
"""What `@extension@` refuses, and what it lets pass."""

from policyengine import call, say
from policyengine.testing import assert_fires_at, assert_never_fires

from @package@ import CODE, @cls@

TWO = {"limit": 2}


def searches(count):
    return [*(call("search", {"page": page}) for page in range(count)), say("done")]


def test_the_limit_may_be_reached():
    assert_never_fires(@cls@, searches(2), options=TWO)


def test_one_call_more_is_refused():
    assert_fires_at(@cls@, searches(3), at=3, action="deny", code=CODE, options=TWO)


def test_other_tools_are_none_of_its_business():
    assert_never_fires(@cls@, searches(3), options={"limit": 1, "tools": ["pay_*"]})


def test_calls_of_one_batch_count_one_by_one():
    turn = {"calls": [{"tool": "search", "args": {"page": page}} for page in range(3)]}
    played = assert_fires_at(@cls@, [turn], at=1, action="deny", options=TWO)
    assert played.actions() == ["allow", "allow", "deny"]


def test_a_policy_that_uses_the_installed_package_tells_the_model_why(policyengine_play):
    played = policyengine_play({"guard": {"use": "@extension@", "with": TWO}}, searches(3))
    assert played.outcome.executed == 2
    assert any("the limit is 2" in message.text for message in played.messages)
''',
    "policies/@name@.yaml": """\
apiVersion: policyengine/v1
kind: Policy
name: @name@
requires:
  extensions: {@name@: ">=0.1,<1"}
extensions:
  @package@:
    use: @extension@
    with: {limit: 3}
""",
    "policies/@name@.test.yaml": """\
apiVersion: policyengine/v1
kind: PolicyTest
policy: ./@name@.yaml
tests:
  - name: three calls pass, the next ones are refused
    turns:
      - {times: 5, calls: [{tool: search, args: {query: opening hours}}]}
      - text: I could not find them.
    expect:
      - {allow: @package@, until: 3}
      - {at: [4, 5], rule: @package@, action: deny, code: @package@}
      - {outcome: completed, executed: 3}
  - name: a run that stays below the limit is left alone
    turns:
      - {times: 3, calls: [{tool: search, args: {query: opening hours}}]}
      - text: From nine to five.
    expect:
      - {allow: @package@}
  - name: a broken guard refuses
    turns:
      - calls: [{tool: search, args: {query: opening hours}}]
    faults: {@package@: raise}
    expect:
      - {at: 1, rule: @package@, action: deny, code: extension_error}
""",
}
"""Every file of a package by its path."""
