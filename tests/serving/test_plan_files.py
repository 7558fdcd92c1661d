"""Plan files and options: strict, with places; options above."""

from __future__ import annotations

import pytest

import optcli
from optcli.errors import OptcliError, RecipeError, UsageError
from optcli.serving import quantities
from optcli.serving.planning import file_schema, schema
from optcli.serving.planning.files import PlanSettings, is_recipe, load

GOOD = 'version: 1\ncurve: "6ms+4ms*b"\nrate_per_s: 200\nslo: {p95_ms: 120}\n'


def written(folder, text):
    path = folder / "plan.yaml"
    path.write_text(text)
    return path


def test_a_plan_file_is_read_with_its_defaults(tmp_path):
    settings = load(written(tmp_path, GOOD), {}, {})
    assert settings.rate_per_s == 200
    assert settings.slo.limits_ms == {0.95: 120}
    assert (settings.headroom, settings.utilisation, settings.target) == (0.2, 0.7, "triton")


@pytest.mark.parametrize(
    ("text", "line", "message", "hint"),
    [
        (GOOD + "haedroom: 0.1\n", 5, "unknown key 'haedroom'", "did you mean 'headroom'?"),
        (GOOD.replace("p95_ms", "p59_ms"), 4, "unknown key 'p59_ms' in slo", "did you mean 'p99_ms'?"),
        (GOOD.replace("200", "0"), 3, "rate_per_s: found 0, wanted more than 0", ""),
        (GOOD + "utilisation: 1.2\n", 5, "found 1.2, wanted at most 1", "lower it"),
        (GOOD + 'batch: "8"\n', 5, "batch: found '8' (text), wanted a whole number", "quotes"),
        (GOOD + "priorities: {a: 0.2, b: 0.8}\n", 1, "found priorities beside target triton", ""),
        (GOOD + "report: a.json\n", 1, "found curve beside report", "change one of them"),
        (GOOD + "variant: int8\n", 1, "found curve beside variant", "change one of them"),
        (GOOD.replace("6ms+4ms*b", "1:25ms,2:20ms"), 2, "the curve falls: batch 1 takes", "measure"),
        (GOOD + "arrivals: gamma:x\n", 5, "'x' in 'gamma:x' is no number", "write poisson"),
        (
            GOOD + "target: ray\npriorities: {a: 0.2, b: 0.2}\n",
            1,
            "shares of priorities that add up to 0.4",
            "",
        ),
        (
            GOOD + "priorities: {a: 0.2, b: 0.8}\ntarget: ray\ninstances: 1\n",
            1,
            "found instances 1 beside 2 priorities, wanted one for each",
            "",
        ),
        (GOOD + "arrivals: [1]\n", 5, "found a list, wanted text", ""),
        ("- 1\n", 1, "found a list, wanted a mapping", "KEY: VALUE"),
        ("", 1, "the plan file is empty", "rate_per_s"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(tmp_path, text, line, message, hint):
    with pytest.raises(RecipeError) as caught:
        load(written(tmp_path, text), {}, {})
    (problem,) = caught.value.problems
    assert problem.line == line
    assert message in problem.message
    assert hint in problem.hint


def test_a_curve_takes_the_place_of_a_report_and_its_variant(tmp_path):
    text = GOOD.replace('curve: "6ms+4ms*b"', "report: built/report.json\nvariant: int8")
    settings = load(written(tmp_path, text), {"curve": "12ms"}, {})
    assert (settings.curve, settings.report, settings.variant) == ("12ms", None, None)


def test_everything_that_is_wrong_is_said_at_once(tmp_path):
    with pytest.raises(RecipeError) as caught:
        load(written(tmp_path, GOOD + "headroom: lots\nseed: -1\n"), {"batch": 0}, {"batch": "--batch"})
    assert [problem.line for problem in caught.value.problems] == [5, 6, 0]
    assert str(caught.value.problems[2]).startswith("--batch: batch: found 0, wanted at least 1")


def test_options_stand_above_the_file(tmp_path):
    settings = load(written(tmp_path, GOOD + "headroom: 0.4\n"), {"slo": {"p99_ms": 90.0}}, {})
    assert settings.slo.limits_ms == {0.95: 120, 0.99: 90}
    assert settings.headroom == 0.4


def test_a_report_is_named_from_the_file(tmp_path):
    text = GOOD.replace('curve: "6ms+4ms*b"', "report: built/report.json")
    settings = load(written(tmp_path, text), {}, {})
    assert settings.report == str(tmp_path / "built" / "report.json")


def test_a_recipe_is_no_plan(tmp_path):
    assert not is_recipe(written(tmp_path, GOOD))
    assert is_recipe(written(tmp_path, "version: 1\nmodel: {source: x}\nslo: {p99_ms: 1}\n"))
    assert not is_recipe(written(tmp_path, "{"))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"curve": "1:25ms,2:20ms"}, "the curve falls"),
        ({"curve": "4:34ms"}, "the curve has one point only"),
        ({"curve": "nonsense"}, "nonsense"),
        ({"curve": "12ms", "batch": 4}, "knows batch 1 alone, found batch 4"),
        ({"arrivals": "weekly"}, "weekly"),
        ({"slo": None}, "nothing is promised"),
        ({"curve": None}, "the plan has no curve"),
    ],
)
def test_what_cannot_be_planned_with_is_bad_input(settings, message):
    given = {"curve": "6ms+4ms*b", "rate_per_s": 200, "slo": {"p95_ms": 120}}
    given = {key: value for key, value in {**given, **settings}.items() if value is not None}
    with pytest.raises(OptcliError, match=message) as caught:
        optcli.plan(**given)
    assert caught.value.exit_code == 2
    assert caught.value.hint


@pytest.mark.parametrize(
    ("read", "text", "value"),
    [
        (quantities.milliseconds, "120ms", 120),
        (quantities.milliseconds, "0.5 s", 500),
        (quantities.milliseconds, "12", 12),
        (quantities.seconds, "8h", 28_800),
        (quantities.seconds, "7d", 604_800),
        (quantities.share, "20%", 0.2),
        (quantities.share, "0.7", 0.7),
        (quantities.overhead, "10ms", {"after_ms": 10}),
        (quantities.overhead, "6ms+4ms", {"before_ms": 6, "after_ms": 4}),
    ],
)
def test_quantities_have_units(read, text, value):
    found = read(text, "--option")
    assert found == (pytest.approx(value) if not isinstance(value, dict) else value)


def test_promises_and_priorities_are_lists():
    assert quantities.promise(("p95=120ms", "p50=40ms,p99=1s"), "--slo") == {
        "p95_ms": 120,
        "p50_ms": 40,
        "p99_ms": 1000,
    }
    assert quantities.priorities(("a=20%,b=0.8",), "--priority") == {"a": 0.2, "b": 0.8}


@pytest.mark.parametrize(
    ("read", "text"),
    [
        (quantities.milliseconds, "fast"),
        (quantities.milliseconds, "12 parsecs"),
        (quantities.milliseconds, "-3ms"),
        (quantities.share, "20 percent"),
    ],
)
def test_what_is_no_quantity_is_said_with_the_option(read, text):
    with pytest.raises(UsageError) as caught:
        read(text, "--option")
    assert caught.value.place == "--option"
    assert caught.value.hint


def test_a_promise_of_another_percentile_is_refused():
    with pytest.raises(UsageError, match="wanted p50, p95 or p99"):
        quantities.promise(("p90=1ms",), "--slo")


def test_both_schemas_are_public():
    assert set(PlanSettings.model_fields) == set(file_schema()["properties"])
    assert {"recommended", "by_batch", "notes", "schema"} <= set(schema()["properties"])
