"""Plan files and options: strict, with places; presets below, options above."""

from __future__ import annotations

import pytest

import optcli
from optcli.errors import OptcliError, RecipeError, UsageError
from optcli.serving import quantities
from optcli.serving.planning import file_schema, presets, schema
from optcli.serving.planning.files import is_recipe, load
from optcli.serving.planning.settings import PlanSettings

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
        (GOOD + "preset: ranking\n", 5, "there is no preset 'ranking'", "did you mean 'ranking-50ms'?"),
        (GOOD + "report: a.json\n", 1, "found curve beside report", "change one of them"),
        (GOOD + "variant: int8\n", 1, "found curve beside variant", "change one of them"),
        (GOOD.replace("6ms+4ms*b", "1:25ms,2:20ms"), 2, "the curve falls: batch 1 takes", "measure"),
        (GOOD + "arrivals: gamma:x\n", 5, "'x' in 'gamma:x' is no number", "write poisson"),
        (GOOD + "priorities: {a: 0.2, b: 0.2}\n", 1, "shares of priorities that add up to 0.4", ""),
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


def test_options_stand_above_the_file_and_presets_below(tmp_path):
    path = written(tmp_path, GOOD + "preset: rtb-10ms\nheadroom: 0.4\n")
    settings = load(path, {"slo": {"p99_ms": 90.0}}, {})
    assert settings.slo.limits_ms == {0.95: 120, 0.99: 90}
    assert (settings.utilisation, settings.headroom) == (0.6, 0.4)


def test_a_rate_takes_the_place_of_the_cameras_of_a_preset():
    settings = load(None, {"preset": "camera-150ms", "rate_per_s": 90}, {})
    assert settings.cameras is None
    assert settings.rate_per_s == 90


def test_a_report_and_a_trace_are_named_from_the_file(tmp_path):
    text = GOOD.replace('curve: "6ms+4ms*b"', "report: built/report.json") + "arrivals: trace:t.csv\n"
    settings = load(written(tmp_path, text), {}, {})
    assert settings.report == str(tmp_path / "built" / "report.json")
    assert settings.arrivals == f"trace:{tmp_path / 't.csv'}"


def test_a_recipe_is_no_plan(tmp_path):
    assert not is_recipe(written(tmp_path, GOOD))
    assert is_recipe(written(tmp_path, "version: 1\nmodel: {source: x}\nslo: {p99_ms: 1}\n"))
    assert not is_recipe(written(tmp_path, "{"))


def test_every_preset_is_a_plan_file_that_says_what_it_is_for():
    assert {
        "rtb-10ms",
        "ranking-50ms",
        "camera-150ms",
        "feed-30ms",
        "driver-200ms",
        "nightly-batch",
    } <= set(presets.names())
    for name in presets.names():
        settings = load(None, {"preset": name}, {})
        assert settings.name == name
        assert len(settings.about) > 40
        assert settings.promised or settings.freshness_s is not None
    with pytest.raises(UsageError, match="no preset 'rtb'"):
        presets.text("rtb")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"curve": "1:25ms,2:20ms"}, "the curve falls"),
        ({"curve": "4:34ms"}, "the curve has one point only"),
        ({"curve": "nonsense"}, "nonsense"),
        ({"curve": "12ms", "batch": 4}, "knows batch 1 alone, found batch 4"),
        ({"arrivals": "weekly"}, "weekly"),
        ({"slo": None}, "nothing is promised"),
        (
            {"rate_per_s": None, "slo": None, "freshness_s": 3600, "instances": 2},
            "the plan has no rate",
        ),
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


def test_an_empty_trace_is_bad_input(tmp_path):
    (tmp_path / "empty.csv").write_text("")
    with pytest.raises(OptcliError) as caught:
        optcli.plan(curve="6ms+4ms*b", slo={"p95_ms": 120}, arrivals=f"trace:{tmp_path / 'empty.csv'}")
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("read", "text", "value"),
    [
        (quantities.milliseconds, "120ms", 120),
        (quantities.milliseconds, "0.5 s", 500),
        (quantities.milliseconds, "12", 12),
        (quantities.seconds, "8h", 28_800),
        (quantities.seconds, "7d", 604_800),
        (quantities.memory, "1.2GB", 1_200_000_000),
        (quantities.memory, "16GiB", 16 * 2**30),
        (quantities.share, "20%", 0.2),
        (quantities.share, "0.7", 0.7),
        (quantities.rate, "600", 600),
        (quantities.overhead, "10ms", {"after_ms": 10}),
        (quantities.overhead, "6ms+4ms", {"before_ms": 6, "after_ms": 4}),
        (quantities.cameras, "6x25/2", {"count": 6, "frames_per_s": 25, "stride": 2}),
    ],
)
def test_quantities_have_units(read, text, value):
    found = read(text, "--option")
    assert found == (pytest.approx(value) if not isinstance(value, dict) else value)


def test_levels_promises_and_priorities_are_lists():
    levels = quantities.rate("400@16h,800@8h", "--rate")
    assert levels == [
        {"rate_per_s": 400, "seconds": 57_600},
        {"rate_per_s": 800, "seconds": 28_800},
    ]
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
        (quantities.rate, "400@16h,800"),
        (quantities.cameras, "6 of 25"),
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
    assert {"recommended", "runner_up", "breaks_first", "notes", "schema"} <= set(
        schema()["properties"]
    )
