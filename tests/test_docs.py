"""The documentation is what the code does: generated parts are current, every block holds, every link leads somewhere.

A page is played from top to bottom in a folder of its own: policies are loaded, Python is run, commands are given to
the command line and their output is compared. Marks in the page, each directly before a block:

* `<!-- file: NAME -->`: the block is written to that file;
* `<!-- expect: CODE -->`: loading the policy must report that problem;
* `<!-- output -->`: the block is what the Python block before it printed;
* `<!-- no-test: WHY -->`: the block is read but not run;
* `<!-- other: PROGRAM -->`: the block is YAML for another program; it is read, and steps of it that call ours are run;
* `<!-- setup` ... `-->`: Python that is run first and not shown.

In output, a line `...` stands for any lines and `...` at the end of a line for the rest of it. Line numbers in shipped
policies, digests and generated ids are not compared.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import pytest
import yaml
from click.testing import CliRunner

from policyengine import ConfigError
from policyengine.cli import cli
from policyengine.cli.loading import load
from policyengine.hooks import HOOKS
from policyengine.policy.codes import CODES
from policyengine.policytest.read import read_suite
from policyengine.providers.scripted import load_script
from policyengine.sandbox import compile_template

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
ENTRANCES = ("README.md", "CONTRIBUTING.md")
PAGES = sorted([*(ROOT / name for name in (*ENTRANCES, "CHANGELOG.md")), *DOCS.rglob("*.md")])
HEAD = "apiVersion: policyengine/v1\nkind: Policy\nname: example\n"

NOT_RUN = re.compile(
    r"pip install|-m venv|\bpytest\b|\bruff\b|\bmypy\b|^git |\.ci/run|bin/activate|docs/generate\.py|\bsphinx-build\b"
)
"""Commands that set a machine up, or check or change the project itself."""


def ids(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


# ---- pages as blocks


class Block(NamedTuple):
    """A fenced block with its language, its first line in the page and the marks before it."""

    language: str
    text: str
    line: int
    marks: dict[str, str]


MARK = re.compile(r"<!-- (file|expect|output|no-test|other|ci)(?:: (.*?))? -->\s*")


def blocks_of(page: Path) -> Iterator[Block]:
    marks: dict[str, str] = {}
    language: str | None = None
    first, held = 0, []
    for number, line in enumerate(page.read_text(encoding="utf-8").split("\n"), 1):
        if language is None:
            if line.startswith("```"):
                language, first, held = line[3:].strip(), number, []
            elif mark := MARK.fullmatch(line):
                marks[mark.group(1)] = mark.group(2) or ""
            elif line.strip():
                marks = {}
        elif line.startswith("```"):
            yield Block(language, "\n".join(held) + "\n", first, marks)
            language, marks = None, {}
        else:
            held.append(line)
    assert language is None, f"{page}:{first}: the block is not closed"


def setup_of(page: Path) -> str:
    return "\n".join(re.findall(r"^<!-- setup\n(.*?)^-->$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL))


# ---- playing a page


class Player:
    """Plays the blocks of one page in a folder."""

    def __init__(self, page: Path, folder: Path) -> None:
        self.page = page
        self.folder = folder
        self.module = ModuleType("documented")
        self.printed = ""
        self.code = 0

    def play(self, block: Block) -> None:
        if "file" in block.marks:
            path = self.folder / block.marks["file"]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.text, encoding="utf-8")
        if block.language == "python":
            self.python(block)
        elif "other" in block.marks:
            yaml.safe_load(block.text)
            steps = re.findall(r"^ *- run: (policyengine .*)$", block.text, re.MULTILINE)
            self.commands(block._replace(language="bash", text="\n".join(steps)))
        elif block.language in ("yaml", "json5"):
            self.policy(block)
        elif block.language in ("console", "bash"):
            if "no-test" not in block.marks and "ci" not in block.marks:
                self.commands(block)
        elif block.language == "text":
            if "output" in block.marks:
                compare(block.text, self.printed)
        else:
            READERS[block.language](block.text)

    def python(self, block: Block) -> None:
        code = compile(block.text, f"{self.page.name}:{block.line}", "exec", dont_inherit=True)
        if "no-test" in block.marks or "file" in block.marks:
            return
        self.run(code)

    def run(self, code: object) -> None:
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(code, vars(self.module))
        self.printed = out.getvalue()

    def policy(self, block: Block) -> None:
        text = block.text
        if "no-test" in block.marks:
            return
        path = self.folder / block.marks.get("file", f"block-{block.line}.{block.language}")
        if "kind: PolicyTest" in text:
            path.write_text(text, encoding="utf-8")
            read_suite(path)
            return
        if re.search(r"^turns:", text, re.MULTILINE):
            path.write_text(text, encoding="utf-8")
            load_script(str(path))
            return
        path.write_text(text if "apiVersion" in text else HEAD + text, encoding="utf-8")
        overlays: list[str] = []
        source = str(path)
        if "kind: Overlay" in text:
            overlays, source = [source], self.target_of(text)
        folders = [str(folder) for folder in (self.folder / "guards", ROOT / "examples" / "dropin") if folder.is_dir()]
        expected = block.marks.get("expect")
        try:
            load(source, overlays, folders)
            found = set()
        except ConfigError as error:
            found = {problem.code for problem in error.problems}
        assert found == set(expected.split() if expected else ()), f"{self.page}:{block.line}: {found}"

    def target_of(self, overlay: str) -> str:
        name = re.search(r"^target: (\S+)", overlay, re.MULTILINE).group(1)
        files = [path for path in self.folder.glob("*.yaml") if f"\nname: {name}\n" in path.read_text(encoding="utf-8")]
        return str(files[0]) if files else name

    def commands(self, block: Block) -> None:
        shown = block.language == "console"
        steps: list[tuple[str, list[str]]] = []
        for line in block.text.replace("\\\n", " ").rstrip("\n").split("\n"):
            if not shown or line.startswith("$ "):
                steps.append((line.removeprefix("$ "), []))
            else:
                assert steps, f"{self.page}:{block.line}: output without a command"
                steps[-1][1].append(line)
        for index, (command, expected) in enumerate(steps):
            command = command.partition("  # ")[0].strip()
            if not command or command.startswith("#") or NOT_RUN.search(command):
                continue
            output = self.command(command)
            if shown:
                compare("\n".join(expected), output)
            told = index + 1 < len(steps) and steps[index + 1][0] == "echo $?"
            assert told or not self.code or command == "echo $?", f"{command} ends with {self.code}:\n{output}"

    def command(self, command: str) -> str:
        words = shlex.split(command)
        target = None
        if len(words) > 2 and words[-2] == ">":
            words, target = words[:-2], words[-1]
        if command == "echo $?":
            return str(self.code)
        if words[0] == "cat":
            return (self.folder / words[1]).read_text(encoding="utf-8")
        if words[0] == "cp":
            shutil.copy(self.folder / words[1], self.folder / words[2])
            return ""
        if words[0] == "policyengine":
            result = CliRunner().invoke(cli, words[1:])
            self.code, output = result.exit_code, result.output
        else:
            assert words[0] == "python", f"{self.page}: {command} is no command that a page may show"
            done = subprocess.run(
                [sys.executable, *words[1:]],
                cwd=ROOT if words[1] == "-m" else self.folder,
                capture_output=True,
                text=True,
                check=False,
                timeout=120,
            )
            self.code, output = done.returncode, done.stdout + done.stderr
        if target is not None:
            (self.folder / target).write_text(output, encoding="utf-8")
            return ""
        return output


READERS = {
    "json": json.loads,
    "jsonl": lambda text: [json.loads(line) for line in text.splitlines() if line.strip()],
    "toml": tomllib.loads,
    "jinja": lambda text: compile_template(text, "example"),
}

CHANGING = (
    (re.compile(r"policy:(\w+):\d+(:\d+)?"), r"policy:\1:N"),
    (re.compile(r"\b[0-9a-f]{32,64}\b"), "H"),
    (re.compile(r"\bdigest [0-9a-f]{12}\b"), "digest H"),
    (re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+Z"), "T"),
    (re.compile(r'"(us|latency_us|now)":[\d.]+'), r'"\1":0'),
)


def normal(text: str) -> list[str]:
    lines = []
    for line in text.split("\n"):
        for pattern, substitute in CHANGING:
            line = pattern.sub(substitute, line)
        if line.strip():
            lines.append(re.sub(r"\s+", " ", line.rstrip()))
    return lines


def fits(wanted: str, line: str) -> bool:
    return line.startswith(wanted.removesuffix("...")) if wanted.endswith("...") else line == wanted


def compare(expected: str, actual: str) -> None:
    """Check that the documented output is an honest excerpt of the actual one."""
    lines, at, gap = normal(actual), 0, False
    for wanted in normal(expected):
        if wanted.strip() == "...":
            gap = True
            continue
        places = [place for place in range(at, len(lines)) if fits(wanted, lines[place])]
        assert places, f"not in the output: {wanted}\n{actual}"
        assert gap or places[0] == at, f"something is left out before: {wanted}\n{actual}"
        at, gap = places[0] + 1, False
    assert gap or at == len(lines), f"something is left out at the end: {lines[at:]}"


def forget_modules_of_temporary_folders(root: Path) -> None:
    """Forget modules that a page or a test wrote itself: the next one may use the same name for another."""
    for name, module in sys.modules.copy().items():  # a collection of garbage may take drop-in modules away meanwhile
        file = Path(str(getattr(module, "__file__", "") or "/"))
        if not file.is_absolute() or file.is_relative_to(root):
            sys.modules.pop(name, None)


PLAYED = [page for page in PAGES if page != DOCS / "errors.md"]
"""Pages whose blocks are played; those of errors.md are the examples that tests/cli/test_explain_error.py loads."""


@pytest.mark.parametrize("page", PLAYED, ids=ids)
def test_every_block_of_a_page_holds(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info", "build")
    shutil.copytree(ROOT / "examples", tmp_path / "examples", ignore=ignored)
    forget_modules_of_temporary_folders(tmp_path.parent)
    player = Player(page, tmp_path)
    sys.modules["documented"] = player.module
    try:
        player.run(compile(setup_of(page), f"{page.name} setup", "exec", dont_inherit=True))
        for block in blocks_of(page):
            known = {*READERS, "python", "yaml", "json5", "console", "bash", "text"}
            assert block.language in known, f"{page}:{block.line}: a block needs one of the languages {sorted(known)}"
            player.play(block)
    finally:
        del sys.modules["documented"]
        forget_modules_of_temporary_folders(tmp_path.parent)


def test_an_excerpt_must_say_where_it_leaves_something_out():
    compare("one\n...\nfour", "one\ntwo\nthree\nfour\n")
    compare("one\ntw...\n...", "one\ntwo\nthree\n")
    for wrong in ("one\nthree\n...", "one\ntwo", "two\none\n..."):
        with pytest.raises(AssertionError):
            compare(wrong, "one\ntwo\nthree\n")


def test_blocks_that_are_not_run_are_rare_and_say_why():
    found = [(page, block) for page in PAGES for block in blocks_of(page) if "no-test" in block.marks]
    assert all(block.marks["no-test"] for _, block in found)
    never = [f"{ids(page)}:{block.line}" for page, block in found if not block.marks["no-test"].endswith("runs it")]
    assert len(never) <= 10, never


# ---- generated parts


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"docs_{name}", DOCS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def generator() -> ModuleType:
    return script("generate")


GENERATED = generator().generated()


@pytest.mark.parametrize("page", sorted(GENERATED), ids=ids)
def test_generated_parts_are_current(page):
    assert page.read_text(encoding="utf-8") == GENERATED[page], "run: python docs/generate.py"


@pytest.mark.parametrize("point", HOOKS.values(), ids=lambda point: point.name)
def test_every_hook_has_a_heading_with_its_arguments_and_a_test(point):
    headings = re.findall(r"^## (.*)$", (DOCS / "hooks.md").read_text(encoding="utf-8"), re.MULTILINE)
    arguments = ", ".join(generator().arguments_of(point))
    assert any(heading.endswith(f"`{point.method}({arguments})`") for heading in headings)
    tests = (ROOT / "tests" / "test_hooks.py").read_text(encoding="utf-8")
    assert f"def test_hook_{point.method}(" in tests


def test_a_hookspec_without_its_five_parts_is_refused():
    def hook() -> None:
        """Do something.

        When: now.
        Example:
            pass
        """

    with pytest.raises(ValueError, match="the parts must be"):
        generator().spec_parts(hook)


def test_the_documented_codes_are_the_codes():
    page = (DOCS / "policy-format.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^\| \[`([A-Z]\d{3})`\]", page, re.MULTILINE)) == set(CODES)
    errors = (DOCS / "errors.md").read_text(encoding="utf-8")
    assert sorted(re.findall(r"^### ([A-Z]\d{3})$", errors, re.MULTILINE)) == sorted(CODES)
    for path in PAGES:
        named = re.findall(r"(?:\[|`)([YSMXRELD]\d{3})(?:\]|`)", path.read_text(encoding="utf-8"))
        assert set(named) <= set(CODES), path


REFERENCES = {"A0": 35, "TE": 8, "AC": 25, "SM": 5, "XA": 9}
DEFECTS = {"A": 16, "B": 8, "C": 14, "D": 8, "E": 13}
"""How many behaviours and how many defects of the reference systems there are to answer."""


def test_every_behaviour_and_defect_of_the_reference_systems_is_answered_once_by_tests_or_a_decision():
    tests = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py"))
    defined = set(re.findall(r"^def (test_\w+)\(", tests, re.MULTILINE))
    page = (DOCS / "reference-systems.md").read_text(encoding="utf-8")
    wanted = [f"{system}-{number}" for system, count in REFERENCES.items() for number in range(1, count + 1)]
    wanted += [f"{system}{number}" for system, count in DEFECTS.items() for number in range(1, count + 1)]
    assert sorted(re.findall(r"^\| ([A-Z]+0?-\d+|[A-E]\d+) \|", page, re.MULTILINE)) == sorted(wanted)
    for row in re.findall(r"^\| (?:[A-Z]+0?-\d+|[A-E]\d+) \|.*$", page.partition("## Not covered")[0], re.MULTILINE):
        held = row.split(" | ")[-1]
        named = re.findall(r"`(test_\w+)`", held)
        numbers = [f"test_t{number}_" for number in re.findall(r"\bT(\d+)\b", held)]
        assert named or numbers or "](decisions/" in held, row
        assert set(named) <= defined, row
        assert all(any(name.startswith(start) for name in defined) for start in numbers), row


def test_every_scenario_has_tests_of_its_number_in_the_files_that_the_page_names():
    page = (DOCS / "reference-systems.md").read_text(encoding="utf-8")
    listed = dict(re.findall(r"^\| T(\d+) \| [^|]* \| (.*) \|$", page, re.MULTILINE))
    assert [int(number) for number in listed] == list(range(1, 41))
    holding: dict[str, list[str]] = {number: [] for number in listed}
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for number in dict.fromkeys(re.findall(r"^def test_t(\d+)_", path.read_text(encoding="utf-8"), re.MULTILINE)):
            holding[number].append(f"`{path.relative_to(ROOT / 'tests').as_posix()}`")
    assert {number: files.split(", ") for number, files in listed.items()} == holding


# ---- links


def links_of(page: Path) -> Iterator[str]:
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    yield from (target for target in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in target)


def anchors_of(page: Path) -> set[str]:
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_every_relative_link_leads_somewhere(page):
    for target in links_of(page):
        name, _, anchor = target.partition("#")
        path = (page.parent / name).resolve() if name else page
        assert path.exists(), target
        assert not anchor or anchor in anchors_of(path), target


def test_every_page_can_be_reached_from_the_entrances():
    reached: set[Path] = set()
    todo = [ROOT / name for name in ENTRANCES]
    while todo:
        page = todo.pop()
        if page in reached or page.suffix != ".md" or not page.is_relative_to(ROOT):
            continue
        reached.add(page)
        todo += [(page.parent / target.partition("#")[0]).resolve() for target in links_of(page) if target[0] != "#"]
    assert [ids(page) for page in PAGES if page not in reached] == []


def test_every_page_stands_once_in_the_side_bar_of_the_site():
    toctrees = script("conf").toctrees
    found = [DOCS / "index.md"]
    for page in (DOCS / "index.md", DOCS / "decisions" / "README.md"):
        for _, listed in toctrees(page.read_text(encoding="utf-8")):
            found += [page.parent / f"{name}.md" for _, name in listed]
    assert sorted(map(ids, found)) == sorted(map(ids, DOCS.rglob("*.md"))), "list a new page in docs/index.md"


def test_on_the_site_links_lead_to_pages_or_to_files_as_they_are():
    rewritten = script("conf").rewritten
    text = "[a](docs/x.md#y) [b](CHANGELOG.md) [c](setup.py) [d](https://e.org) [f](#g)\n```\n[h](setup.py)\n```\n"
    wanted = "[a](x.md#y) [b](changelog.md) [c](path:../setup.py) [d](https://e.org) [f](#g)\n```\n[h](setup.py)\n```\n"
    assert rewritten(text, ROOT, "contributing") == wanted
    assert rewritten("[a](../../CONTRIBUTING.md#b)", DOCS / "decisions", "decisions/x") == "[a](../contributing.md#b)"
    assert rewritten("[cli.md](cli.md#run)", DOCS, "index") == "[](cli.md#run)"


def test_documents_named_in_the_code_exist():
    folders = ("policyengine", "extensions", "examples", "policies", "prompts", "benchmarks")
    files = [path for name in folders for path in (ROOT / name).rglob("*") if path.suffix in (".py", ".yaml", ".toml")]
    missing = []
    for path in [*files, ROOT / "setup.py", ROOT / "pyproject.toml"]:
        for name in re.findall(r"\bdocs/(?:decisions/\d{4}|[\w/-]+\.md)", path.read_text(encoding="utf-8")):
            found = list(ROOT.glob(f"{name}*")) if "decisions" in name else [ROOT / name]
            missing += [f"{ids(path)}: {name}" for candidate in found or [ROOT / name] if not candidate.exists()]
    assert missing == []


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_a_page_names_no_place_of_one_machine(page):
    assert not re.search(r"(?<![\w.])/(?:home|root|work|tmp|Users)/", page.read_text(encoding="utf-8"))
