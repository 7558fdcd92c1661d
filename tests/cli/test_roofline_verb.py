"""`optcli roofline` and `optcli compare --roofline`."""

from __future__ import annotations

import json

import pytest

from optcli import environment
from optcli.measure import roofline
from optcli.measure.roofline import Bandwidth, Rate, Roofline


def machine(logs: object = None, observer: object = None) -> Roofline:
    counts = sorted({1, environment.usable_cores()})
    common = {"operation": "matmul", "library": "torch", "size": "512"}
    speeds = {"working_set_bytes": 1 << 20, "read_per_s": 1e10, "triad_per_s": 9e9}
    return Roofline(
        cores=environment.usable_cores(),
        last_level_cache_bytes=1 << 25,
        rates=tuple(Rate(precision="fp32", threads=n, per_s=1.5e11, **common) for n in counts),
        bandwidths=tuple(Bandwidth(threads=n, **speeds) for n in counts),
        environment=environment.describe(roofline.PACKAGES),
        measured_at="2026-03-01T12:00:00+00:00",
    )


@pytest.fixture(autouse=True)
def _measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roofline, "measure", machine)


def test_peaks_as_text_and_as_json(optcli, tmp_path):
    said = optcli("roofline", "--store", tmp_path / "store")
    assert said.code == 0
    assert "fp32 matrix products" in said.out
    assert "150" in said.out
    said = optcli("roofline", "--store", tmp_path / "store", "--json")
    assert Roofline.model_validate(json.loads(said.out)) == machine()


@pytest.mark.slow
@pytest.mark.usefixtures("place")
def test_compare_says_how_near_each_variant_comes(optcli):
    said = optcli("compare", "--roofline")
    assert said.code == 3
    assert "optcli roofline" in said.err
    assert optcli("roofline").code == 0
    said = optcli("compare", "--roofline", "--json")
    variants = json.loads(said.out)["variants"]
    assert variants["plain"]["operations"]["per_image"] == 192
    assert variants["plain"]["operations"]["shares"][0]["bound"] in ("compute", "memory")
    assert " GOP " in optcli("compare", "--roofline").out
    said = optcli("compare", "tiny", "tiny", "--roofline")
    assert said.code == 2
    assert "wants one" in said.err
