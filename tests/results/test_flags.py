"""Flags: every kind with its figures and its words."""

import json
from typing import get_args

import pytest
from pydantic import ValidationError

from optcli.results import Flag, flags
from optcli.results.flags import FlagKind

EVERY = [
    ("p90 n/a (n=20, needs 36)", flags.too_few_calls(90, 20, 36)),
    ("p99 n/a (n=128, needs 368)", flags.too_few_calls(99, 128, 368)),
    ("fluctuating (IQR/median 21 %)", flags.fluctuating(0.21)),
    ("environment not fit (in too many launches)", flags.environment_not_fit()),
    ("environment not fit (IQR/median 41 %)", flags.environment_not_fit(spread=0.41)),
    (
        "environment not fit (waiting for a processor 36 %)",
        flags.environment_not_fit(waited=0.36),
    ),
    ("environment not fit (launches 2 times apart)", flags.environment_not_fit(apart=2)),
    ("environment not fit (launches 1.2e+02 times apart)", flags.environment_not_fit(apart=120)),
    (
        "environment not fit (IQR/median 41 %, waiting for a processor 36 %, launches 1.5 times apart)",
        flags.environment_not_fit(0.41, 0.36, 1.5),
    ),
    (
        "environment not fit (IQR/median 41 %, launches 1.5 times apart)",
        flags.environment_not_fit(spread=0.41, apart=1.5),
    ),
    (
        "environment not fit (waiting for a processor 120 %, launches 1.5 times apart)",
        flags.environment_not_fit(waited=1.2, apart=1.5),
    ),
    (
        "not counted: 4 of 16 rounds, the machine was not quiet",
        flags.rounds_not_counted(left_out=4, rounds=16),
    ),
    ("noisy: 9 % of the time lost ()", flags.noisy(0.09)),
    (
        "noisy: 9 % of the time lost (18 involuntary context switches)",
        flags.noisy(0.09, switches=18),
    ),
    (
        "noisy: 9 % of the time lost (0.32 s stolen by the hypervisor)",
        flags.noisy(0.09, steal_s=0.32),
    ),
    (
        "noisy: 9 % of the time lost (18 involuntary context switches, 0.40 s waiting for a processor)",
        flags.noisy(0.09, switches=18, waited_s=0.4),
    ),
    (
        "noisy: 9 % of the time lost (18 involuntary context switches, 0.32 s stolen by the hypervisor,"
        " 0.40 s waiting for a processor)",
        flags.noisy(0.09, 18, 0.32, 0.4),
    ),
    (
        "unsteady: 1 of 2 launches not steady after warming up",
        flags.unsteady(launches=1, total=2),
    ),
    ("unsteady: 1 launch not steady after warming up", flags.unsteady(launches=1, total=1)),
    ("fewer launches: 2 of 5", flags.fewer_launches(launches=2, planned=5)),
    ("time cap: 2 of 8 rounds", flags.time_cap(rounds=2, planned=8, launches=1, total=1)),
    (
        "time cap: 2 of 8 rounds in 3 of 5 launches",
        flags.time_cap(rounds=2, planned=8, launches=3, total=5),
    ),
    ("ran with 1 threads, wanted 2", flags.other_thread_count(threads=1, wanted=2)),
    (
        "restless: it computed 20 % of the time in which others were timed",
        flags.restless(share=0.2),
    ),
    (
        "throttled: a CPU quota of 1.5 cores stopped the processes for 2.3 s in all",
        flags.throttled(seconds=2.34, quota=1.5),
    ),
    (
        "throttled: a CPU quota stopped the processes for 2.3 s in all",
        flags.throttled(seconds=2.34),
    ),
    (
        "4 threads on 2 cores wait for each other: what other work cost is not known",
        flags.threads_over_cores(threads=4, cores=2),
    ),
    (
        "no speed-up: the baseline eager could not be measured beside it",
        flags.no_speedup("baseline-not-beside", "eager"),
    ),
    ("no speed-up: the baseline eager failed", flags.no_speedup("baseline-failed", "eager")),
    (
        "no speed-up: the machine was not fit for eager in 3 launches",
        flags.no_speedup("not-fit", unfit=("eager",), launches=3),
    ),
    (
        "no speed-up: the machine was not fit for eager and onnx in 3 launches",
        flags.no_speedup("not-fit", unfit=("eager", "onnx"), launches=3),
    ),
    (
        "no speed-up: the machine was not quiet for both at once in 3 launches",
        flags.no_speedup("not-fit-together", launches=3),
    ),
    (
        "no speed-up: launches disagree in 3 launches",
        flags.no_speedup("launches-disagree", launches=3),
    ),
    (
        "no speed-up on the device: nothing of the baseline eager ran there",
        flags.no_speedup_on_device("eager"),
    ),
    (
        "batch size 128 not measured: the model takes 1 to 64",
        flags.batch_size_not_measured(128, "the model takes 1 to 64"),
    ),
    (
        "autocast fp16: this CPU has no fp16 instructions; it computes in fp16, but slowly",
        flags.no_instructions("fp16"),
    ),
    (
        "optimized to the level all when it was saved, whatever is asked",
        flags.saved_level("all"),
    ),
    (
        "5 of 10 operators run on the CPU, with copies in between",
        flags.operators_on_cpu(operators=5, total=10),
    ),
    (
        "the engine was built on NVIDIA H100 and runs on NVIDIA H200: it may be slower there",
        flags.built_on_other_gpu(built_on="NVIDIA H100", gpu="NVIDIA H200"),
    ),
    (
        "1.50 of the peak cannot be: operations are miscounted, or the peak was measured too low"
        " (optcli roofline --remeasure)",
        flags.over_the_peak(share=1.5),
    ),
    (
        "other work disturbed the times: on a quiet machine it comes nearer to the limit",
        flags.disturbed(),
    ),
    ("no GPU", flags.no_gpu()),
    ("no runtime", flags.no_runtime()),
    ("at batch size 4: it was killed", flags.stopped("at batch size 4: it was killed")),
    (
        "environment not fit: other work had the processors, its threads together waited for them"
        " 1.2 s for each second of its calls",
        flags.waited_for_processors(waited=1.2),
    ),
    (
        "360 samples are few for a margin of 1.00 points: to tell it for others than these takes about"
        " 1,240",
        flags.few_samples(360, 0.01, 1240),
    ),
    (
        "360 samples are few for a margin of 0.01 points: to tell it for others than these takes about"
        " more than 10,000,000",
        flags.few_samples(360, 0.0001, 10_000_000, more=True),
    ),
    (
        "no anchor against small losses that add up: the float variant onnx was built on neither side",
        flags.no_float_anchor("onnx"),
    ),
    ("a failure was measured again, independently", flags.confirmed()),
    ("operators are not compared: no profiler", flags.operators_not_compared("no profiler")),
    ("anything", flags.other("anything")),
]


@pytest.mark.parametrize(("text", "flag"), EVERY, ids=[text[:60] for text, _ in EVERY])
def test_a_flag_is_said_and_comes_back(text, flag):
    assert flag.text == text
    record = json.loads(flag.model_dump_json())
    assert set(record) == {"kind", "figures", "text"}
    assert Flag.model_validate(record) == flag
    assert flag.summary


def test_every_kind_is_tried_and_defined():
    assert {flag.kind for _, flag in EVERY} == set(get_args(FlagKind))
    assert set(flags._KINDS) == set(get_args(FlagKind))


def test_a_kind_of_a_newer_optcli_is_read_by_its_text():
    newer = {"kind": "moonlight", "figures": {"lux": 0.3}, "text": "the moon shone"}
    assert Flag.model_validate(newer) == flags.other("the moon shone")
    more = {"kind": "restless", "figures": {"share": 0.2, "cores": 3}, "text": "restless"}
    assert Flag.model_validate(more) == flags.restless(0.2)


@pytest.mark.parametrize(
    "record",
    [
        7,
        {"kind": "moonlight"},
        {"kind": ["restless"]},
        {"kind": "restless"},
        {"kind": "restless", "figures": 3},
        {"kind": "restless", "figures": {"share": "much"}},
        {"kind": "no-speedup", "figures": {"why": "moonlight"}},
    ],
)
def test_figures_of_no_kind_are_refused(record):
    with pytest.raises(ValidationError):
        Flag.model_validate(record)
