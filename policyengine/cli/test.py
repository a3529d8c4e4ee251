"""`policyengine test`: play the tests of policies and say what they reach.

Knows: how results are shown. Must not know: how a test is played.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click
import msgspec
from rich.text import Text

from policyengine.cli import AT_FAULT, COULD_NOT, NOTHING, OK
from policyengine.cli.options import allow_empty_option, form_option, json_form_option
from policyengine.cli.output import aside, print_json, say, table, terminal
from policyengine.errors import ConfigError, ExtensionError, UsageError
from policyengine.policy.problems import Format, Problem, annotation, problems_of, records, render
from policyengine.policytest.coverage import Coverage, RuleCoverage, coverage, percent
from policyengine.policytest.junit import junit
from policyengine.policytest.model import CaseResult, SuiteResult
from policyengine.policytest.play import play_suite
from policyengine.policytest.read import find_files, read_suite
from policyengine.visible import clean, clean_line


class Tested(msgspec.Struct, frozen=True):
    """What came of all files: their results, the files that could not be used, and what the tests reach."""

    results: tuple[SuiteResult, ...]
    broken: dict[str, tuple[Problem, ...]]
    covered: tuple[Coverage, ...] | None = None

    @property
    def cases(self) -> list[CaseResult]:
        """Every test that was played."""
        return [case for result in self.results for case in result.cases]

    @property
    def failed(self) -> int:
        """How many of them failed."""
        return sum(not case.ok for case in self.cases)


@click.command("test")
@click.argument("sources", nargs=-1, metavar="FILE|DIR...")
@click.option("--coverage", "with_coverage", is_flag=True, help="Say which rules and thresholds the tests reach.")
@click.option("--fail-under", type=click.FloatRange(0, 100), metavar="PERCENT", help="Fail with less coverage.")
@click.option("--junit", "junit_file", metavar="FILE", help="Write the results as JUnit XML.")
@allow_empty_option
@form_option
@json_form_option
def command(
    sources: tuple[str, ...],
    with_coverage: bool,
    fail_under: float | None,
    junit_file: str | None,
    allow_empty: bool,
    form: Format,
    as_json: bool,
) -> int:
    """Play the tests of policies: files of `kind: PolicyTest`, and all of them below a directory.

    Exit code: 0 all pass, 1 some fail or too little is covered, 2 some cannot be played, 4 there is none.
    """
    form = "json" if as_json else form
    with aside(form in ("json", "github")):
        tested = play(sources, with_coverage or fail_under is not None)
    if junit_file is not None:
        _write(junit_file, junit(tested.results, tested.broken))
    if form == "json":
        print_json(_described(tested))
    elif form == "github":
        for text in _annotated(tested):
            print(text)
    else:
        _show(tested, short=form == "short")
        for problems in tested.broken.values():
            say(render(problems, form))
    return exit_code(tested, fail_under, allow_empty=allow_empty)


def play(sources: Sequence[str], with_coverage: bool) -> Tested:
    """Play the tests of all files; one that cannot be used keeps no other from being played."""
    results: list[SuiteResult] = []
    broken: dict[str, tuple[Problem, ...]] = {}
    for path in find_files(sources):
        try:
            results.append(play_suite(read_suite(path)))
        except (ConfigError, ExtensionError) as error:
            broken[str(path)] = problems_of(error, str(path))
    covered = coverage(results) if with_coverage and not broken else None
    return Tested(tuple(results), broken, covered)


def exit_code(tested: Tested, fail_under: float | None, *, allow_empty: bool) -> int:
    """Return the exit code, and say why where nothing else does."""
    if tested.broken:
        return COULD_NOT
    if not tested.cases:
        say("nothing to test: no test found")
        return OK if allow_empty else NOTHING
    if tested.failed:
        return AT_FAULT
    if fail_under is not None and tested.covered is not None:
        reached = percent(tested.covered)
        if reached < fail_under:
            say(f"the tests reach {reached:.1f} % of the policy, less than {fail_under:g} %")
            return AT_FAULT
    return OK


def _write(file: str, text: str) -> None:
    try:
        Path(file).write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot write {file}: {error.strerror}") from error


def _annotated(tested: Tested) -> Iterator[str]:
    """Yield an annotation for each expectation that does not hold and each problem of a file."""
    for result in tested.results:
        for case in result.cases:
            for failure in case.failures:
                text = clean(f"{failure.message}\n{failure.account}".rstrip())
                yield annotation("error", failure.position, clean_line(case.case.name), text)
    for problems in tested.broken.values():
        yield render(problems, "github")


def _show(tested: Tested, *, short: bool) -> None:
    console = terminal()

    def line(text: str, style: str = "") -> None:
        console.print(Text(clean(text), style), soft_wrap=True)

    for result in tested.results:
        policy = result.suite.engine.snapshot.policy.name
        failed = [case for case in result.cases if not case.ok]
        line(f"{clean_line(result.suite.file)} ({policy}): {len(result.cases) - len(failed)} pass, {len(failed)} fail")
        for case in failed if short else ():
            for failure in case.failures:
                line(clean_line(f"{failure.position}: {case.case.name}: {failure.message}"))
        for case in failed if not short else ():
            line(f"FAILED {clean_line(case.case.name)}", "bold red")
            told = ""
            for failure in case.failures:
                line(f"{failure.position}: {failure.message}")
                if failure.account not in ("", told):
                    told = failure.account
                    line(told)
    for item in tested.covered or ():
        _show_coverage(item, short=short)


def _show_coverage(item: Coverage, *, short: bool) -> None:
    console = terminal()
    share = f"{percent([item]):.1f} % ({item.reached} of {item.total})"
    console.print(Text(f"coverage of {item.policy}: {share}", "bold"), soft_wrap=True)
    if short:
        return
    rules = table("rule", "#asked", "#trips", "#does not", "#fails")
    for rule in item.rules:
        goals = [_count(count) for count in (rule.evaluated, rule.tripped, rule.not_tripped)]
        rules.add_row(Text(rule.rule), *goals, Text(str(rule.errored)))
    console.print(rules)
    if any(rule.thresholds for rule in item.rules):
        console.print(_thresholds(item.rules))


def _count(count: int) -> Text:
    return Text(str(count), "" if count else "red")


def _side(side: bool | None) -> Text:
    if side is None:
        return Text("-")
    return Text("yes", "green") if side else Text("no", "red")


def _thresholds(rules: Sequence[RuleCoverage]) -> Any:
    shown = table("threshold", "#value", "below", "at", "above")
    for rule in rules:
        for threshold in rule.thresholds:
            sides = (threshold.below, threshold.at, threshold.above)
            name = clean_line(f"{rule.rule}.{threshold.option}")
            shown.add_row(Text(name), Text(f"{threshold.value:g}"), *map(_side, sides))
    return shown


def _described(tested: Tested) -> dict[str, Any]:
    covered = tested.covered
    return {
        "ok": not tested.broken and not tested.failed and bool(tested.cases),
        "tests": len(tested.cases),
        "failed": tested.failed,
        "files": [_file(result) for result in tested.results],
        "broken": [{"file": file, "problems": records(problems)} for file, problems in tested.broken.items()],
        "coverage": None
        if covered is None
        else {"percent": round(percent(covered), 1), "policies": msgspec.to_builtins(covered)},
    }


def _file(result: SuiteResult) -> dict[str, Any]:
    policy = result.suite.engine.snapshot.policy
    return {
        "file": result.suite.file,
        "policy": {"name": policy.name, "revision": policy.revision, "digest": policy.digest},
        "tests": [
            {
                "name": case.case.name,
                "line": case.case.position.line,
                "ok": case.ok,
                "failures": [
                    {
                        "file": failure.position.file,
                        "line": failure.position.line,
                        "column": failure.position.column,
                        "message": failure.message,
                        "account": failure.account,
                    }
                    for failure in case.failures
                ],
            }
            for case in result.cases
        ],
    }
