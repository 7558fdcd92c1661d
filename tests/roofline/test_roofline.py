"""The roofline: which rate counts, which bandwidth, and how near a computation comes to the limit."""

from __future__ import annotations

import pytest

from optcli import environment, workers
from optcli.errors import RunnerError, StepError
from optcli.measure import roofline
from optcli.measure.roofline import Bandwidth, Rate, Roofline, document, limit, torch
from optcli.measure.roofline.findings import computed_in
from optcli.measure.roofline.timing import CONVOLUTIONS, RateRequest, best_s, product_operations
from optcli.observer import Silent
from optcli.report.terminal import text as shown

GIGA = 1e9
MIB = 1024**2


def rate(precision, per_s, threads=1, operation="matmul", library="torch", device="cpu"):
    return Rate(
        precision=precision,
        operation=operation,
        library=library,
        threads=threads,
        size="512 x 512 x 512",
        per_s=per_s * GIGA,
        device=device,
    )


def memory(mib, read, triad=0.0, threads=1):
    return Bandwidth(
        working_set_bytes=mib * MIB, threads=threads, read_per_s=read * GIGA, triad_per_s=triad * GIGA
    )


def machine(**changes):
    return Roofline(
        **{
            "cores": 4,
            "last_level_cache_bytes": 32 * MIB,
            "rates": (
                rate("fp32", 100, library="torch"),
                rate("fp32", 130, library="openvino", operation="convolution"),
                rate("fp32", 450, threads=4),
                rate("int8", 400),
                rate("int8", 1500, threads=4),
            ),
            "bandwidths": (
                memory(1, 100, 90),
                memory(16, 60),
                memory(128, 20, 25),
                memory(1, 300, threads=4),
                memory(16, 150, threads=4),
                memory(128, 40, threads=4),
            ),
            "environment": {"cpu": {"model": "EPYC"}},
            "measured_at": "2026-03-01T12:00:00+00:00",
            **changes,
        }
    )


def test_the_fastest_library_is_the_peak():
    found = machine()
    assert found.peak("fp32", 1).library == "openvino"
    assert found.peak("fp32", 1, "matmul").per_s == 100 * GIGA
    assert found.peak("fp16") is None
    assert found.peak("fp32", 1, device="gpu") is None


@pytest.mark.parametrize(("threads", "expected"), [(1, 130), (2, 260), (3, 390), (4, 450), (8, 450)])
def test_between_one_and_all_cores_the_peak_grows_no_faster_than_threads(threads, expected):
    assert machine().operations_per_s("fp32", threads) == expected * GIGA


def test_bandwidth_is_of_the_largest_set_within():
    found = machine()
    assert found.bytes_per_s(20 * MIB, 1) == 60 * GIGA
    assert found.bytes_per_s(500 * MIB, 1) == 25 * GIGA
    assert found.bytes_per_s(1000, 1) == 100 * GIGA
    assert found.bytes_per_s(500 * MIB, 4) == 40 * GIGA
    uneven = machine(bandwidths=(memory(1, 10), memory(16, 60)))
    assert uneven.bytes_per_s(MIB, 1) == 60 * GIGA, "a larger set cannot be faster"


def test_the_limit_is_the_lower_of_arithmetic_and_memory():
    dense = limit(machine(), "fp32", 1, operations=1e9, moved_bytes=10e6)
    assert (dense.bound, dense.per_s, dense.precision) == ("compute", 130 * GIGA, "fp32")
    thin = limit(machine(), "fp32", 1, operations=1e9, moved_bytes=1e9)
    assert (thin.bound, thin.per_s) == ("memory", 25 * GIGA)
    integers = limit(machine(), "int8", 4, operations=1e12, moved_bytes=10e6)
    assert (integers.precision, integers.per_s) == ("int8", 1500 * GIGA)
    assert limit(machine(rates=()), "fp32", 1, 1e9, 1e6) is None


@pytest.mark.parametrize(
    ("precision", "expected"),
    [
        ("int8", "int8"),
        ("int8-dynamic", "int8"),
        ("int8-weights", "fp32"),
        ("int4-weights", "fp32"),
        ("bf16", "bf16"),
    ],
)
def test_what_is_computed_in_which_type(precision, expected):
    assert computed_in(precision) == expected


def test_a_type_without_instructions_is_computed_in_fp32():
    assert limit(machine(), "fp16", 1, 1e9, 1e6).precision == "fp32"


def test_it_comes_back_from_its_record():
    found = machine(notes=("load 3.0 on 2 cores",))
    assert Roofline.model_validate(found.model_dump(mode="json", by_alias=True)) == found


def test_its_text_names_peaks_libraries_and_doubts():
    found = machine(
        rates=(*machine().rates, rate("fp16", 90_000, device="gpu")), notes=("load 3.0 on 2 cores",)
    )
    text = shown(document(found))
    assert "EPYC, 4 cores" in text
    row = next(line for line in text.splitlines() if line.startswith("fp32 matrix products"))
    assert row.split()[3:5] == ["100", "450"]
    assert "openvino" in text
    assert "fp16 on the GPU" in text
    assert "90000" in text
    assert "load 3.0 on 2 cores" in text


def test_the_best_of_many_calls_counts(monkeypatch):
    now = [0.0]
    lasting = iter([0.5, 0.5, 0.1, 0.3, 0.1, 0.1, 0.4, 0.2] + [0.5] * 100)
    monkeypatch.setattr("optcli.measure.roofline.timing.time.perf_counter", lambda: now[0])

    def call():
        now[0] += next(lasting)

    assert best_s(call, 0.2) == pytest.approx(0.1)


def test_a_busy_machine_is_given_more_time_but_not_for_ever(monkeypatch):
    now, calls = [0.0], []
    monkeypatch.setattr("optcli.measure.roofline.timing.time.perf_counter", lambda: now[0])

    def call():
        calls.append(1)
        now[0] += 0.1 * 1.1 ** (40 - len(calls))

    best_s(call, 0.1)
    assert len(calls) == 6, "an ever shorter call never agrees: four times as long, five calls"


def test_operations_of_the_shapes():
    assert product_operations(512) == 2 * 512**3
    assert CONVOLUTIONS[0].operations == 2 * 2 * 56 * 56 * 64 * 64 * 9


def test_every_library_with_one_core_and_with_all(monkeypatch):
    asked = []

    def run(function, request, gives, *, log, environment, timeout_s):
        asked.append((function, request.threads, environment["OMP_NUM_THREADS"]))
        if "openvino" in function:
            raise StepError("it crashed")
        if function.endswith("bandwidths"):
            return [memory(size // MIB or 1, 9) for size in request.working_sets_bytes]
        return [rate("fp32", 10, request.threads)]

    monkeypatch.setattr(workers, "run", run)
    monkeypatch.setattr(environment, "usable_cores", lambda: 2)
    monkeypatch.setattr(environment, "has_gpu", lambda: False)
    found = roofline.measure(None, Silent())
    assert {(name.rpartition(".")[2], threads) for name, threads, _ in asked} == {
        (name, threads)
        for name in ("torch:rates", "onnxruntime:rates", "openvino:rates", "torch:bandwidths")
        for threads in (1, 2)
    }
    assert all(str(threads) == said for _, threads, said in asked)
    assert found.cores == 2
    assert {each.threads for each in found.rates} == {1, 2}
    assert sum("openvino" in note and "crashed" in note for note in found.notes) == 2
    sizes = {each.working_set_bytes for each in found.bandwidths}
    assert max(sizes) >= 4 * found.last_level_cache_bytes or max(sizes) == 2 * 1024**3


def test_no_library_at_all_is_an_error(monkeypatch):
    def run(*_, **__):
        raise StepError("it crashed")

    monkeypatch.setattr(workers, "run", run)
    with pytest.raises(RunnerError, match="crashed"):
        roofline.measure(None, Silent())


def test_a_gpu_is_asked_for_every_precision():
    class Fake:
        def product(self, side, precision):
            return None if precision == "bf16" else (side, precision)

        def best_s(self, call, repetitions):
            return 1.0 if call[1] == "fp32" else 0.25

    found = torch.rates_of_device(Fake(), threads=2)
    assert {each.precision for each in found} == {"fp32", "tf32", "fp16", "int8"}
    assert all(each.device == "gpu" for each in found)
    best = {each.precision: each.per_s for each in found}
    assert best["fp32"] == 2 * 8192**3
    assert best["int8"] == 4 * best["fp32"]


@pytest.mark.long
@pytest.mark.slow
def test_real_libraries_give_rates_of_every_kind():
    """Structure only: how fast it is here is no test's business."""
    asked = RateRequest(threads=1, seconds=0.001, working_sets_bytes=(1 << 18,))
    precisions = {"fp32", "int8", *(p for p in ("bf16", "fp16") if environment.computes_in(p))}
    for library in ("torch", "onnxruntime", "openvino"):
        found = workers.run(f"optcli.measure.roofline.{library}:rates", asked, list[Rate])
        assert all(each.per_s > 0 for each in found)
        assert {(each.library, each.threads) for each in found} == {(library, 1)}
        assert {each.operation for each in found} == {"matmul", "convolution"}
        wanted = {"fp32", "int8"} if library == "onnxruntime" else precisions
        assert {each.precision for each in found} == wanted
    (small,) = workers.run("optcli.measure.roofline.torch:bandwidths", asked, list[Bandwidth])
    assert small.working_set_bytes == 1 << 18
    assert small.read_per_s > 0
    assert small.triad_per_s > 0
