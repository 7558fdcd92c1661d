"""The second region: what the same calls took on the device."""

import numpy as np
import pytest
from scripted import ScriptedChannel, ScriptedChild

from optcli import environment
from optcli.artifact import Artifact, Format
from optcli.measure import latency
from optcli.measure.latency import process
from optcli.measure.latency.messages import Command, HeldMemory, MeasureRequest
from optcli.observer import Silent
from optcli.results import flags
from optcli.settings import TensorSpec
from optcli.settings.latency import LatencySettings

INPUTS = (TensorSpec(name="image", shape=("batch", 3), batch={"min": 1, "opt": 8, "max": 64}),)
SETTINGS = LatencySettings(launches=1, rounds=4, calls=16, batch_sizes=(1, 4), threads=2)


@pytest.fixture
def served(tmp_path, plain_runner):
    """The answer to one round of four calls."""

    def serve():
        request = MeasureRequest(
            artifact=Artifact("k", Format.ONNX, tmp_path, "fp32", 10, "d"),
            inputs=INPUTS,
            runner="plain",
            options={"threads": 2},
            feeds=None,
            batch_sizes=(1,),
            seed=0,
        )
        turn = Command("round", 1, 4, lead_in=2)
        channel = ScriptedChannel(Command("open"), turn)
        process.serve(request, channel)
        return channel.answers[1]

    return serve


def numbered(self):
    """0.5 ms for the first call, 1.5 for the second, ..."""
    self.__dict__["calls"] = self.__dict__.get("calls", -1) + 1
    return self.__dict__["calls"] + 0.5


@pytest.mark.slow
def test_every_timed_call_is_asked_for_its_time_on_the_device(served, plain_runner, monkeypatch):
    monkeypatch.setattr(plain_runner, "device_ms", numbered)
    assert served().device_ns == (500_000, 1_500_000, 2_500_000, 3_500_000)


@pytest.mark.slow
def test_without_a_device_there_is_no_second_series(served):
    assert served().device_ns is None


def test_a_series_with_holes_is_none(served, plain_runner, monkeypatch):
    def now_and_then(self):
        found = numbered(self)
        return found if found != 2.5 else None

    monkeypatch.setattr(plain_runner, "device_ms", now_and_then)
    assert served().device_ns is None


def test_a_runner_that_times_its_calls_itself_is_believed(served, plain_runner, monkeypatch):
    monkeypatch.setattr(plain_runner, "host_ns", lambda self: 123_456_789)
    assert served().ns == (123_456_789,) * 4


@pytest.fixture
def measured(tmp_path, scripted, candidate):
    scripted(
        eager={"call_ns": 8e6, "jitter": 0.01},
        cuda={"call_ns": 4e6, "device_ns": 3_000_000},
        engine={"call_ns": 2e6, "device_ns": 1_500_000},
    )

    def measure(*names, baseline):
        candidates = [candidate(name) for name in names]
        return latency.measure(
            latency.LatencyOrder(candidates, baseline, INPUTS, None, SETTINGS, 0), tmp_path, Silent()
        )

    return measure


def test_the_region_has_rows_of_its_own_behind_whole_calls(measured):
    rows = latency.to_results(measured("cuda", "engine", baseline="cuda"))
    assert [(row.region, row.batch_size) for row in rows["engine"]] == [
        ("host", 1),
        ("host", 4),
        ("device", 1),
        ("device", 4),
    ]
    device = rows["engine"][2]
    assert (device.p50_ms.value, device.mean_ms) == (1.5, 1.5)
    assert device.throughput_per_s == pytest.approx(1000 / 1.5)
    assert device.samples == rows["engine"][0].samples
    assert device.speedup.value == pytest.approx(2.0)
    assert rows["cuda"][2].speedup.value == 1.0
    assert (device.load_ms, device.cpu_ms, device.peak_memory_bytes) == (None, None, None)


def test_beside_a_baseline_on_the_cpu_it_has_no_speedup_and_says_so(measured):
    rows = latency.to_results(measured("eager", "engine", baseline="eager"))
    assert [row.region for row in rows["eager"]] == ["host", "host"]
    assert rows["engine"][2].speedup is None
    assert rows["engine"][2].flags[-1] == flags.no_speedup_on_device("eager")
    assert rows["engine"][0].speedup.value == pytest.approx(4.0, rel=0.02)


@pytest.mark.slow
def test_raw_times_of_both_regions_are_kept(measured, tmp_path):
    found = measured("eager", "engine", baseline="eager")
    latency.save(found, tmp_path / "samples.npz")
    again = latency.load(tmp_path / "samples.npz")
    kept = {series.name: series for series in again.series}
    assert kept["eager"].device_ns is None
    assert kept["engine"].device_ns.shape == kept["engine"].ns.shape
    assert np.all(kept["engine"].device_ns == 1_500_000)
    assert latency.to_results(again) == latency.to_results(found)


def test_clocks_and_throttling_of_gpus_stand_before_and_after(measured, monkeypatch):
    clocks = iter([{"gpus": [{"clocks.sm": "1980 MHz"}]}, {"gpus": [{"clocks.sm": "1200 MHz"}]}])
    monkeypatch.setattr(environment, "conditions", lambda: next(clocks))
    found = latency.protocol(measured("cuda", "engine", baseline="cuda"))
    assert found["conditions"]["before"]["gpus"] == [{"clocks.sm": "1980 MHz"}]
    assert found["conditions"]["after"]["gpus"] == [{"clocks.sm": "1200 MHz"}]
    assert found["device_region"] is True


def test_what_only_calls_show_is_in_the_effective_settings(measured, monkeypatch):
    def memory(self, command):
        return HeldMemory({"cuda_graphs": "on"}, peak_memory_bytes=1)

    monkeypatch.setattr(ScriptedChild, "do_memory", memory)
    found = measured("cuda", "engine", baseline="cuda")
    assert found.opened["engine"].effective["cuda_graphs"] == "on"
    assert found.opened["engine"].effective["precision"] == "fp32"


@pytest.mark.slow
def test_verdicts_judge_whole_calls(measured):
    rows = latency.to_results(measured("cuda", "engine", baseline="cuda"))["engine"]
    (pays,) = latency.verdicts((*rows[2:], *rows[:2]), SETTINGS, None, "cuda")
    assert pays.actual == rows[0].speedup.value
