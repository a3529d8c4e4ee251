"""Whatever an extension is: it is refused with file and name, and nothing else is harmed.

Every case is tried as a drop-in file and as an installed package.
"""

from __future__ import annotations

import json
import subprocess
import sys
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

import policyengine.plugins.folder
import policyengine.plugins.registry
import policyengine.policy.rules
import policyengine.snapshot
from policyengine import ConfigError, Engine
from policyengine.cli import cli

HEAD = "from policyengine import Extension, hookimpl\n"


def guard(*, base: str = "Extension", before: str = "", body: str = "", hook: str = "") -> str:
    hook = hook or "    @hookimpl\n    def on_stop(self, run, stop):\n        return None\n"
    return f"{HEAD}{before}\n\nclass Guard({base}):\n    name = 'acme.guard'\n{body}{hook}"


def method(signature: str, mark: str = "@hookimpl", result: str = "return None") -> str:
    return f"    {mark}\n    {signature}\n        {result}\n"


CASES: dict[str, tuple[str, str]] = {
    "wrapper": (
        guard(hook=method("def on_stop(self, run, stop):", "@hookimpl(wrapper=True)", "return (yield)")),
        "a hook wrapper could hide the answers",
    ),
    "old wrapper": (
        guard(hook=method("def on_stop(self, run, stop):", "@hookimpl(hookwrapper=True)", "yield")),
        "a hook wrapper could hide the answers",
    ),
    "async": (guard(hook=method("async def on_stop(self, run, stop):")), "hooks are synchronous"),
    "keyword-only": (guard(hook=method("def on_stop(self, run, *, stop):")), "'stop' is keyword-only"),
    "defaulted": (guard(hook=method("def on_stop(self, run, stop=None):")), "'stop' has a default"),
    "variadic": (guard(hook=method("def on_stop(self, **all):")), r"`\*\*all` is refused"),
    "misspelt hook": (guard(hook=method("def on_stpo(self, run, stop):")), "did you mean 'on_stop'"),
    "misspelt and optional": (
        guard(hook=method("def on_stpo(self, run, stop):", "@hookimpl(optionalhook=True)")),
        "did you mean 'on_stop'",
    ),
    "optional": (guard(hook=method("def on_stop(self, run):", "@hookimpl(optionalhook=True)")), "optional hook may be"),
    "unmarked": (guard(hook=method("def on_stop(self, run):", "# not marked")), "must be marked with @hookimpl"),
    "import raises": (f"{HEAD}raise ValueError('no')\n", "cannot be imported: ValueError: no"),
    "import exits": (f"{HEAD}raise SystemExit(3)\n", "cannot be imported: SystemExit: 3"),
    "import recurses": (
        f"{HEAD}\ndef again():\n    return again()\n\n\nagain()\n",
        "cannot be imported: RecursionError",
    ),
    "import does not parse": (f"{HEAD}class Guard(Extension:\n", "cannot be imported: SyntaxError"),
    "text of the exception fails": (
        f"{HEAD}\nclass Bad(Exception):\n    def __str__(self):\n        raise ValueError\n\n\nraise Bad\n",
        "cannot be imported: Bad",
    ),
    "metaclass fails for the name": (
        guard(
            before=(
                "\nclass Meta(type):\n    @property\n    def name(cls):\n        raise ValueError('hidden')\n"
                "\n    @name.setter\n    def name(cls, value):\n        pass\n"
            ),
            base="Extension, metaclass=Meta",
        ),
        "cannot be examined: ValueError: hidden",
    ),
    "metaclass fails for everything": (
        guard(
            before=(
                "\nclass Meta(type):\n    def __getattribute__(cls, name):\n"
                "        raise ValueError('hidden ' + name)\n"
            ),
            base="Extension, metaclass=Meta",
        ),
        "cannot be examined: ValueError: hidden",
    ),
    "descriptor fails": (
        guard(
            before="\nclass Bad:\n    def __get__(self, instance, owner):\n        raise SystemExit(4)\n",
            body="    messages = Bad()\n",
        ),
        "cannot be examined: SystemExit: 4",
    ),
    "property in the place of options": (
        guard(body="    options = property(lambda self: 1 / 0)\n"),
        "options must be a mapping",
    ),
    "constructor raises": (
        guard(body="    def __init__(self, options):\n        raise SystemExit(5)\n\n"),
        "cannot be set up with these options: SystemExit: 5",
    ),
    "constructor recurses": (
        guard(body="    def __init__(self, options):\n        self.__init__(options)\n\n"),
        "cannot be set up with these options: RecursionError",
    ),
    "constructor hangs": (
        guard(
            before="\nimport threading\n",
            body="    def __init__(self, options):\n        threading.Event().wait()\n\n",
        ),
        "cannot be set up with these options: TimeoutError: no answer after",
    ),
    "attribute lookup fails": (
        guard(body="    def __getattribute__(self, name):\n        raise ValueError('hidden')\n\n"),
        "cannot be set up with these options: ValueError: hidden",
    ),
}


@pytest.fixture(params=["file", "package"])
def place(request, tmp_path, site, monkeypatch):
    """Return a way to put a source where extensions are found, as a drop-in file or as an installed package."""
    monkeypatch.chdir(tmp_path)

    def put(source: str) -> tuple[str, list[str], str]:
        if request.param == "file":
            (tmp_path / "guards").mkdir()
            (tmp_path / "guards" / "hostile.py").write_text(source)
            return "", ["--folder", "guards"], "hostile.py"
        site.install("acme-hostile", {"acme.guard": "hostile:Guard"}, requires=["agent-policyengine"], hostile=source)
        return 'requires: {extensions: {acme-hostile: "*"}}\n', [], "hostile.py"

    return put


@pytest.fixture
def hurry(monkeypatch):
    """Return a way to give code a fraction of a second where one module calls it, and nowhere else.

    Only what never answers can be hurried: anything else takes longer now and then, since a full collection of garbage
    in a process that ran many tests stops every thread for some tenths of a second.
    """

    def shorten(module):
        monkeypatch.setattr(module, "workers", SimpleNamespace(SETUP_S=0.2))

    return shorten


@pytest.mark.parametrize(("source", "expected"), CASES.values(), ids=CASES.keys())
def test_it_is_refused_with_file_and_name_and_the_policy_can_be_checked_without_it(
    tmp_path, place, hurry, source, expected
):
    if "no answer" in expected:
        hurry(policyengine.snapshot)
    requires, folders, file = place(source)
    policy = f"apiVersion: policyengine/v1\nkind: Policy\nname: p\n{requires}"
    (tmp_path / "p.yaml").write_text(policy + "extensions: {mine: {use: acme.guard}, steps: {use: step_limit}}\n")

    with pytest.raises(ConfigError, match=expected) as caught:
        Engine(tmp_path / "p.yaml", folders=folders[1:])
    (problem,) = caught.value.problems
    assert problem.code == "X406"
    assert (problem.position.file, problem.path.split(".")[:2]) == (str(tmp_path / "p.yaml"), ["extensions", "mine"])
    assert file in problem.message
    assert "acme.guard" in problem.message

    run = CliRunner().invoke
    assert run(cli, ["check", "p.yaml", "--no-extensions"]).exit_code == 0
    assert run(cli, ["extensions", "list", "--no-import", *folders]).exit_code == 0

    checked = run(cli, ["extensions", "check", "--format", "json", *folders])
    assert checked.exit_code == 1, checked.output
    faults = [problem for problem in json.loads(checked.stdout)["problems"] if problem["severity"] == "error"]
    assert any(fault["code"] == "X406" and file in fault["file"] for fault in faults), faults
    assert folders or all("acme-hostile 1.0" in fault["path"] for fault in faults)

    (tmp_path / "p.yaml").write_text(policy + "extensions: {steps: {use: step_limit}}\n")
    assert run(cli, ["check", "p.yaml", *folders]).exit_code == 0


def test_a_proxy_among_the_globals_of_a_module_is_not_asked_what_it_is(tmp_path, extension_source):
    from policyengine.plugins.folder import load_file

    proxy = (
        "\n\nclass Proxy:\n    @property\n    def __class__(self):\n        raise RuntimeError('no request')\n"
        "\n\nrequest = Proxy()\n"
    )
    (tmp_path / "a.py").write_text(extension_source("local.a") + proxy)
    assert [found.name for found in load_file(tmp_path / "a.py")] == ["local.a"]


HANGS = f"{HEAD}import threading\n\nthreading.Event().wait()\n"


def test_an_import_that_never_ends_is_given_up_and_does_not_keep_its_correction_out(tmp_path, hurry, monkeypatch):
    (tmp_path / "guards").mkdir()
    file = tmp_path / "guards" / "mine.py"
    file.write_text(guard())
    policy = tmp_path / "p.yaml"
    policy.write_text("apiVersion: policyengine/v1\nkind: Policy\nname: p\nextensions: {mine: {use: acme.guard}}\n")
    engine = Engine(policy, folders=[file.parent])

    file.write_text(HANGS)
    hurry(policyengine.plugins.folder)
    assert not engine.reload()
    monkeypatch.undo()
    (problem,) = engine.status().rejection.problems
    assert "mine.py" in problem.message
    assert "cannot be imported: TimeoutError: no answer after 0.2 s" in problem.message

    file.write_text(guard() + "\n# corrected\n")
    assert engine.reload()
    assert engine.snapshot.generation == 2


def test_a_package_whose_import_never_ends_is_named_and_left_behind(tmp_path, site, hurry):
    site.install("acme-hang", {"acme.guard": "hostile_hang:Guard"}, hostile_hang=HANGS)
    policy = tmp_path / "p.yaml"
    head = 'apiVersion: policyengine/v1\nkind: Policy\nname: p\nrequires: {extensions: {acme-hang: "*"}}\n'
    policy.write_text(f"{head}extensions: {{mine: {{use: acme.guard}}}}\n")
    hurry(policyengine.plugins.registry)
    for _ in range(2):  # the second one waits for the lock of the module
        with pytest.raises(ConfigError, match=r"acme-hang 1\.0.*cannot be imported: TimeoutError: no answer"):
            Engine(policy)
    policy.write_text(f"{head}extensions: {{steps: {{use: step_limit}}}}\n")
    assert Engine(policy).snapshot.generation == 1


def test_a_check_of_options_that_never_ends_is_given_up(tmp_path, hurry):
    (tmp_path / "guards").mkdir()
    body = "    @classmethod\n    def check_options(cls, options):\n        threading.Event().wait()\n\n"
    (tmp_path / "guards" / "mine.py").write_text(guard(before="import threading\n", body=body))
    policy = tmp_path / "p.yaml"
    policy.write_text("apiVersion: policyengine/v1\nkind: Policy\nname: p\nextensions: {mine: {use: acme.guard}}\n")
    hurry(policyengine.policy.rules)
    with pytest.raises(ConfigError, match=r"check_options\(\) of acme\.guard .* raised TimeoutError: no answer"):
        Engine(policy, folders=[tmp_path / "guards"])


@pytest.mark.parametrize("where", ["import", "setup"])
def test_a_recursion_limit_that_code_lowers_is_put_back(tmp_path, where):
    (tmp_path / "guards").mkdir()
    lower = "sys.setrecursionlimit(60)\n"
    before = f"import sys\n\n{lower if where == 'import' else ''}"
    body = f"    def setup(self):\n        {lower}\n" if where == "setup" else ""
    (tmp_path / "guards" / "mine.py").write_text(guard(before=before, body=body))
    policy = tmp_path / "p.yaml"
    policy.write_text("apiVersion: policyengine/v1\nkind: Policy\nname: p\nextensions: {mine: {use: acme.guard}}\n")
    limit = sys.getrecursionlimit()
    assert Engine(policy, folders=[tmp_path / "guards"]).snapshot.generation == 1
    assert sys.getrecursionlimit() == limit


def test_a_thread_that_a_package_started_does_not_keep_the_command_line_from_ending(tmp_path):
    (tmp_path / "guards").mkdir()
    start = "threading.Thread(target=threading.Event().wait, name='stays', daemon=False).start()\n"
    (tmp_path / "guards" / "mine.py").write_text(guard(before=f"import threading\n\n{start}"))
    (tmp_path / "p.yaml").write_text(
        "apiVersion: policyengine/v1\nkind: Policy\nname: p\nextensions: {mine: {use: acme.guard}}\n"
    )
    program = "import policyengine.cli as cli, sys; cli.PATIENCE_S = 0.2; sys.argv[0] = 'policyengine'; cli.main()"
    for arguments, code in (["check", "p.yaml", "--folder", "guards"], 0), (["check", "p.yaml", "--nothing"], 1):
        command = [sys.executable, "-c", program, *arguments]
        ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
        assert ended.returncode == code, ended.stderr
        if not code:
            assert ended.stdout.startswith("ok: ")
            assert "not waited for: threads of extensions or tools that have not ended (stays)" in ended.stderr
