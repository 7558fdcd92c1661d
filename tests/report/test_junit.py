"""JUnit XML: every result is counted once, and nothing that a name holds breaks the document."""

from xml.etree import ElementTree

from example import accuracy, report, variant, verdict

from optcli.report import accuracy as of_accuracy
from optcli.report.junit import Case, junit

CASES = (
    Case("digits.a", "accuracy", "passed", "it is right", "drop 0.01"),
    Case("digits.a", "outputs", "passed", "equal"),
    Case("digits.b", "accuracy", "failure", "too low", "drop 0.2"),
    Case("digits.b", "samples", "skipped", "too few"),
    Case("digits.c", "evaluation", "error", "it aborted"),
    Case("digits.d", "evaluation", "error", "it hung"),
)


def test_every_result_is_counted():
    (suite,) = ElementTree.fromstring(junit("a suite", "2026-03-01", CASES))
    assert suite.attrib == {
        "name": "a suite",
        "tests": "6",
        "failures": "1",
        "skipped": "1",
        "errors": "2",
        "timestamp": "2026-03-01",
    }


def test_cases_say_why():
    (suite,) = ElementTree.fromstring(junit("a suite", "2026-03-01", CASES))
    assert [(case.get("classname"), case.get("name")) for case in suite][2] == ("digits.b", "accuracy")
    found = [(child.tag, child.get("message"), child.text) for case in suite for child in case]
    assert found == [
        ("system-out", None, "it is right\ndrop 0.01"),
        ("system-out", None, "equal"),
        ("failure", "too low", "drop 0.2"),
        ("skipped", "too few", None),
        ("error", "it aborted", None),
        ("error", "it hung", None),
    ]


def test_what_xml_cannot_hold_is_replaced_everywhere():
    case = Case("a\x00", "b\x01", "failure", "c\x0b", "d\x1f\ufffe")
    (suite,) = ElementTree.fromstring(junit("e\x08<&", "2026-03-01", [case]))
    assert suite.get("name") == "e?<&"
    assert (suite[0].get("classname"), suite[0].get("name")) == ("a?", "b?")
    assert (suite[0][0].get("message"), suite[0][0].text) == ("c?", "d??")


def test_an_accuracy_report_has_a_case_per_verdict_and_failure():
    (suite,) = ElementTree.fromstring(of_accuracy.junit(report()))
    counts = {name: suite.get(name) for name in ("tests", "failures", "skipped", "errors")}
    assert counts == {"tests": "5", "failures": "1", "skipped": "0", "errors": "1"}
    failure = suite.find("testcase[@classname='digits.pruned-onnx']/failure")
    assert failure.get("message").startswith("top1 95.56 %")
    assert failure.text.splitlines() == [failure.get("message"), "drop 1.000000", "samples 360"]
    assert suite.find("testcase[@classname='digits.aoti']/error").get("message").startswith("it was")


def test_a_rejection_that_does_not_block_is_no_failure():
    advice = verdict("samples", "reject", blocking=False)
    one = report({"eager": variant(1000, [], accuracy(), [advice])})
    (suite,) = ElementTree.fromstring(of_accuracy.junit(one))
    assert suite.get("failures") == "0"
    assert suite[0][0].tag == "system-out"
