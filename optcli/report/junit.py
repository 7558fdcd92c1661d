"""JUnit XML, which CI systems show as test results."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal
from xml.etree import ElementTree

from optcli.results import Verdict
from optcli.results.gate import Comparison

# What XML 1.0 cannot hold.
_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]")


@dataclass(frozen=True)
class Case:
    """One test case: of which class, what it is called, how it ended, why, and its figures.

    What is skipped or an error has a reason alone.
    """

    place: str
    name: str
    result: Literal["passed", "failure", "skipped", "error"]
    reason: str
    figures: str = ""


def judged(place: str, name: str, answer: Verdict | Comparison, figures: str, failed: str) -> Case:
    """The case of an answer: with `failed` as its figures where it rejects and blocks."""
    if answer.outcome == "inconclusive":
        return Case(place, name, "skipped", answer.reason)
    if answer.outcome == "reject" and answer.blocking:
        return Case(place, name, "failure", answer.reason, failed)
    return Case(place, name, "passed", answer.reason, figures)


def junit(name: str, started: str, cases: Sequence[Case]) -> str:
    """A document with one suite; control characters, which XML cannot hold, become question marks."""
    count = [case.result for case in cases].count
    root = ElementTree.Element("testsuites")
    suite = ElementTree.SubElement(
        root,
        "testsuite",
        name=_text(name),
        tests=str(len(cases)),
        failures=str(count("failure")),
        skipped=str(count("skipped")),
        errors=str(count("error")),
        timestamp=started,
    )
    for case in cases:
        _add(suite, case)
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _add(suite: ElementTree.Element, case: Case) -> None:
    element = ElementTree.SubElement(
        suite, "testcase", classname=_text(case.place), name=_text(case.name)
    )
    if case.result == "passed":
        output = "\n".join(filter(None, (case.reason, case.figures)))
        ElementTree.SubElement(element, "system-out").text = _text(output)
        return
    problem = ElementTree.SubElement(element, case.result, message=_text(case.reason))
    if case.figures:
        problem.text = _text(case.figures)


def _text(value: str) -> str:
    return _CONTROL.sub("?", value)
