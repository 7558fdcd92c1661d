from dataclasses import replace

import pytest

from optcli.measure.latency.plan import groups, plan
from optcli.settings.latency import LatencySettings

SETTINGS = LatencySettings(launches=1, rounds=8, calls=16, max_seconds=10)


@pytest.mark.parametrize(
    ("call_ms", "wants_p99", "rounds", "calls"),
    [
        (0.01, False, 8, 500),  # a round of 20 ms, at most 500 calls
        (0.1, False, 8, 200),  # a round of 20 ms
        (5, False, 8, 69),  # p99 is cheap: 368 calls take 1.9 s of 10; half as many again, to lose some
        (10, False, 8, 16),  # p99 would take 3.7 s: not asked for
        (10, True, 8, 69),  # asked for
        (20, True, 8, 46),  # asked for, with nothing to lose
        (50, True, 8, 25),  # asked for, but the time cap comes first
        (49.2, True, 8, 25),  # the same with calls left over
        (500, False, 8, 2),
        (2000, False, 5, 1),  # not even one call in each round
        (60_000, False, 2, 1),
    ],
)
def test_as_many_calls_as_the_cap_and_the_percentile_say(call_ms, wants_p99, rounds, calls):
    found = plan(call_ms * 1e6, SETTINGS, wants_p99)
    assert (found.rounds, found.calls) == (rounds, calls)


def test_settings_can_ask_for_more_calls():
    assert plan(5e6, LatencySettings(launches=1, rounds=8, calls=100), False).calls == 100


@pytest.mark.parametrize(
    ("call_ms", "rounds", "calls"),
    [
        (0.01, 8, 500),  # a round of 20 ms would be more calls than are kept
        (0.05, 8, 400),  # a round of 20 ms
        (0.5, 8, 120),  # a round of 60 ms
        (5, 8, 25),  # 1000 samples
        (30, 8, 25),  # 1000 samples, just affordable
        (40, 8, 10),  # 368 for p99
        (100, 8, 5),  # 368 would take more than the cap
        (500, 8, 1),
        (3000, 2, 1),  # not even one call in each round
    ],
)
def test_a_table_has_a_thousand_samples_where_the_cap_allows(call_ms, rounds, calls):
    found = plan(call_ms * 1e6, LatencySettings(mode="table"), False)
    assert (found.rounds, found.calls) == (rounds, calls)


def test_a_gate_has_the_rounds_and_not_the_samples_of_a_table():
    gate = LatencySettings(mode="gate")
    assert [plan(ms * 1e6, gate, False).calls for ms in (1, 5, 50)] == [60, 12, 5]


def test_the_mode_sets_the_defaults_and_the_recipe_has_the_last_word():
    quick, table, gate = (LatencySettings(mode=mode) for mode in ("quick", "table", "gate"))
    assert [each.launches for each in (quick, table, gate)] == [3, 5, 8]
    assert [each.rounds for each in (quick, table, gate)] == [4, 8, 8]
    assert (quick.max_seconds, table.max_seconds) == (10, 30)
    assert LatencySettings(mode="table", launches=3, calls=50).launches == 3
    assert LatencySettings.model_validate(table.model_dump()) == table
    assert LatencySettings().mode == "quick"


def names(found):
    return [[each.name for each in group] for group in found]


def test_all_together_where_they_fit(candidate):
    three = [candidate("a"), candidate("eager"), candidate("b")]
    assert names(groups(three, "eager", 8 * 2**30)) == [["eager", "a", "b"]]


def test_every_group_has_the_baseline(candidate):
    many = [candidate(name, size_bytes=100 * 2**20) for name in ("eager", "a", "b", "c")]
    # Each is held to take 400 + 3 * 100 MiB.
    assert names(groups(many, "eager", 2100 * 2**20)) == [["eager", "a", "b"], ["eager", "c"]]


def test_a_form_for_each_batch_size_takes_memory(candidate):
    many = [candidate(name, size_bytes=100 * 2**20) for name in ("eager", "a", "b")]
    assert names(groups(many, "eager", 2150 * 2**20)) == [["eager", "a", "b"]]
    forms = {"shapes": "static", "batch_sizes": [1, 4, 8]}
    many[2] = replace(many[2], options=forms)
    assert names(groups(many, "eager", 2150 * 2**20)) == [["eager", "a"], ["eager", "b"]]


def test_what_fits_nowhere_is_tried_alone_with_the_baseline(candidate):
    many = [candidate("eager"), candidate("huge", size_bytes=2**40), candidate("b")]
    assert names(groups(many, "eager", 2**30)) == [["eager", "huge"], ["eager", "b"]]


def test_the_baseline_alone_is_a_group(candidate):
    assert names(groups([candidate("eager")], "eager", 0)) == [["eager"]]
