"""The results of tests as JUnit XML, which continuous integration reads.

Knows: the XML. Must not know: how tests are played.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from xml.etree import ElementTree

from policyengine.policy.problems import Problem, render
from policyengine.policytest.model import SuiteResult
from policyengine.visible import clean, clean_line


def junit(results: Iterable[SuiteResult], broken: Mapping[str, Sequence[Problem]]) -> str:
    """Return the results, and the files that could not be used (as errors), as one XML document."""
    root = ElementTree.Element("testsuites")
    for result in results:
        failed = sum(not case.ok for case in result.cases)
        spent = sum(case.seconds for case in result.cases)
        suite = _suite(root, result.suite.file, len(result.cases), failed, 0, spent)
        for case in result.cases:
            position = case.case.position
            facts = {"classname": result.suite.engine.snapshot.policy.name, "name": case.case.name}
            facts |= {"file": position.file, "line": str(position.line), "time": f"{case.seconds:.3f}"}
            item = ElementTree.SubElement(suite, "testcase", {name: clean_line(text) for name, text in facts.items()})
            for failure in case.failures:
                text = f"{failure.position}: {failure.message}\n{failure.account}"
                ElementTree.SubElement(item, "failure", message=clean_line(failure.message)).text = clean(text)
    for file, problems in broken.items():
        suite = _suite(root, file, 1, 0, 1, 0.0)
        item = ElementTree.SubElement(suite, "testcase", classname=clean_line(file), name="can be used", time="0.000")
        ElementTree.SubElement(item, "error", message=clean_line(problems[0].message)).text = render(problems, "short")
    ElementTree.indent(root)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"


def _suite(
    root: ElementTree.Element, file: str, tests: int, failures: int, errors: int, seconds: float
) -> ElementTree.Element:
    counts = {"tests": tests, "failures": failures, "errors": errors}
    facts = {"name": clean_line(file), **{name: str(count) for name, count in counts.items()}, "time": f"{seconds:.3f}"}
    return ElementTree.SubElement(root, "testsuite", facts)
