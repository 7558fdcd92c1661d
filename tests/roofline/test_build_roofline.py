"""How near variants come to the limit: what is counted, what is kept, what cannot be."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from report_forms import markdown, text
from tiny_project import Project

from optcli import environment
from optcli.errors import MissingError, UsageError
from optcli.files import digest
from optcli.measure import roofline
from optcli.measure.roofline import Bandwidth, Rate, Roofline
from optcli.observer import Silent
from optcli.pipeline import roofline_share
from optcli.pipeline import roofline_share as build_roofline
from optcli.results import Estimate, Latency, Operations, Report, flags
from optcli.scaffold.inspection import Findings, Target
from optcli.store import Store

GIGA = 1e9


def machine(per_s: float = 100 * GIGA, **changes: object) -> Roofline:
    cores = environment.usable_cores()
    counts = sorted({1, cores})
    common = {"operation": "matmul", "library": "torch", "size": "512"}
    speeds = {"working_set_bytes": 1 << 20, "read_per_s": 10 * GIGA, "triad_per_s": 9 * GIGA}
    return Roofline(
        **{
            "cores": cores,
            "last_level_cache_bytes": 1 << 25,
            "rates": tuple(
                Rate(precision=precision, threads=count, per_s=per_s * times, **common)
                for precision, times in (("fp32", 1), ("int8", 4))
                for count in counts
            ),
            "bandwidths": tuple(Bandwidth(threads=count, **speeds) for count in counts),
            "environment": environment.describe(roofline.PACKAGES),
            "measured_at": "2026-03-01T12:00:00+00:00",
            **changes,
        }
    )


def latency(p50_ms: float, batch_size: int = 1) -> Latency:
    return Latency(
        batch_size=batch_size,
        threads=1,
        samples=9,
        p50_ms=Estimate(value=p50_ms),
        mean_ms=p50_ms,
        throughput_per_s=1,
        measured_at="2026-03-01T12:00:00+00:00",
    )


WORK = Operations(
    per_image=100_000_000, weight_bytes=1_000_000, input_output_bytes_per_image=500, counted_in="x"
)


def test_the_share_is_of_what_the_type_and_the_batch_allow() -> None:
    fp32 = build_roofline.share(WORK, latency(2), "fp32", machine())
    assert fp32 is not None
    assert (fp32.share, fp32.bound) == (pytest.approx(0.5), "compute")
    assert fp32.achieved_per_s == pytest.approx(50 * GIGA)
    int8 = build_roofline.share(WORK, latency(2, batch_size=4), "int8", machine())
    assert int8 is not None
    assert (int8.share, int8.limit_per_s) == (pytest.approx(0.5), 400 * GIGA)
    thin = WORK.model_copy(update={"weight_bytes": 100_000_000})
    bound = build_roofline.share(thin, latency(20), "fp32", machine())
    assert bound is not None
    assert (bound.bound, bound.share) == ("memory", pytest.approx(0.5, rel=1e-3))


def test_the_share_has_the_interval_of_the_latency() -> None:
    row = latency(2).model_copy(update={"p50_ms": Estimate(value=2, low=1.6, high=2.5)})
    found = build_roofline.share(WORK, row, "fp32", machine())
    assert found is not None
    assert (found.low, found.share, found.high) == (
        pytest.approx(0.4),
        pytest.approx(0.5),
        pytest.approx(0.625),
    )
    bare = row.model_copy(update={"p50_ms": Estimate(value=2)})
    found = build_roofline.share(WORK, bare, "fp32", machine())
    assert found is not None
    assert (found.low, found.high) == (None, None)


def test_the_share_of_disturbed_times_has_no_interval_and_says_so() -> None:
    found = build_roofline.share(WORK, latency(2).model_copy(update={"fit": False}), "fp32", machine())
    assert found is not None
    assert (found.low, found.high) == (None, None)
    assert found.flags == (flags.disturbed(),)


def test_more_than_all_is_a_miscount_and_is_said() -> None:
    found = build_roofline.share(WORK, latency(0.5), "fp32", machine())
    assert found is not None
    assert found.share == pytest.approx(2)
    assert found.flags == (flags.over_the_peak(share=found.share),)
    sound = build_roofline.share(WORK, latency(1.001), "fp32", machine())
    assert sound is not None
    assert sound.flags == ()


def findings(**changes: object) -> Findings:
    return Findings.model_validate(
        {
            "target": "x",
            "kind": "artifact",
            "format": "onnx",
            "size_bytes": 1,
            "inputs": [{"name": "image", "dtype": "uint8", "shape": ["batch", 3, 8, 8]}],
            "outputs": [{"name": "logits", "dtype": "float32", "shape": ["batch", 10]}],
            "parameters_by_type": {"fp32": 100, "int8": 1000, "uint4": 10},
            "operations": {"macs": 4000, "flops": 8000, "at": {"image": [2, 3, 8, 8]}},
            **changes,
        }
    )


def test_operations_and_bytes_are_of_one_image() -> None:
    found = roofline_share.operations_of(findings(), "export_onnx")
    assert found is not None
    assert (found.per_image, found.counted_in) == (4000, "export_onnx")
    assert found.weight_bytes == 400 + 1000 + 5
    assert found.input_output_bytes_per_image == 3 * 8 * 8 + 10 * 4
    assert found.moved_bytes(8) == 1405 + 8 * 232


def test_what_cannot_be_counted_is_not_invented() -> None:
    assert roofline_share.operations_of(findings(operations=None), "x") is None
    nothing = {"macs": 0, "flops": 0, "at": {"image": [1, 3, 8, 8]}}
    assert roofline_share.operations_of(findings(operations=nothing), "x") is None


def test_the_roofline_is_measured_once_and_kept(
    tmp_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = []

    def measure(logs: object, observer: object) -> Roofline:
        measured.append(logs)
        return machine(per_s=len(measured) * GIGA)

    monkeypatch.setattr(roofline, "measure", measure)
    assert build_roofline.stored(tmp_store) is None
    first = build_roofline.measured(tmp_store, Silent())
    assert build_roofline.measured(tmp_store, Silent()) == first == build_roofline.stored(tmp_store)
    again = build_roofline.measured(tmp_store, Silent(), remeasure=True)
    assert (len(measured), again.rates[0].per_s) == (2, 2 * GIGA)
    monkeypatch.setattr(environment, "usable_cores", lambda: 99)
    assert build_roofline.stored(tmp_store) is None, "another machine is another roofline"


@pytest.mark.long
@pytest.mark.slow
def test_a_report_with_operations_and_shares(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    project.recipe("  plain: []\n  saved: [{optimize_onnx: {to: ort}}]\n")
    found = project.build()
    store, folder = Store(project.store), project.artifacts / "tiny"
    with pytest.raises(MissingError, match="not measured yet"):
        build_roofline.near(found, folder, store)
    monkeypatch.setattr(roofline, "measure", lambda logs, observer: machine())
    build_roofline.measured(store, Silent())

    counted = build_roofline.near(found, folder, store)
    plain, saved = (counted.variants[name].operations for name in ("plain", "saved"))
    assert plain is not None
    assert saved is not None
    assert plain.per_image == saved.per_image == 2 * 48 * 2
    assert plain.weight_bytes == 48 * 2 * 4
    assert plain.input_output_bytes_per_image == (48 + 2) * 4
    assert saved.counted_in == "source", "what ONNX Runtime wrote cannot be read"
    (near,) = plain.shares
    assert 0 < near.share < 1
    assert near.flags == ()
    shown, page = text(counted), markdown(counted)
    assert all(" GOP " in line for line in shown.splitlines() if line.startswith("variant "))
    assert f"({near.bound})" in shown
    assert "| GOP | of peak |" in page
    assert "GOP" not in text(found)
    assert Report.model_validate_json(counted.to_json()) == counted

    monkeypatch.setattr(roofline_share.inspection, "look_into", lambda target: pytest.fail("kept"))
    assert build_roofline.near(found, folder, store) == counted
    elsewhere = found.model_copy(update={"environment": {**found.environment, "cores": 77}})
    with pytest.raises(UsageError, match="another cores"):
        build_roofline.near(elsewhere, folder, store)


def test_a_network_in_python_from_elsewhere_is_not_looked_into(
    tmp_path: Path, tmp_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[Target] = []
    monkeypatch.setattr(roofline_share.inspection, "look_into", looked.append)
    monkeypatch.setattr(roofline_share, "operations_of", lambda found, name: None)
    folder = tmp_path / "made"
    folder.mkdir()
    (folder / "model.json").write_text("{}")
    content = digest.of_value([["model.json", digest.of_file(folder / "model.json")]])
    about = {
        "key": "12", "digest": content, "format": "torch", "precision": "fp32", "size_bytes": 2,
        "made_by": [{"key": "12", "step": "source", "kind": "python"}], "facts": {},
    }  # fmt: skip
    (folder / "artifact.json").write_text(json.dumps(about))
    assert roofline_share.count_operations(folder, tmp_store) is None
    assert not looked
    assert not list(tmp_store.entries()), "another who makes the same may have it counted"
    (folder / "artifact.json").write_text(json.dumps({**about, "format": "onnx"}))
    assert roofline_share.count_operations(folder, tmp_store) is None
    assert len(looked) == 1
