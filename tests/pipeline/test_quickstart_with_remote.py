"""The quickstart on two machines with one remote store between them, with the real libraries."""

from __future__ import annotations

from pathlib import Path

import pytest
from needs import REPOSITORY
from tiny_project import Heard

from optcli.artifact import Format
from optcli.pipeline import build
from optcli.store import Store
from optcli.store.remote import RemotePlace

RECIPE = REPOSITORY / "recipes" / "quickstart.yaml"
QUICK = ("latency={launches: 1, rounds: 2, calls: 2, warmup: 1, max_seconds: 0.05, threads: 1}",)


class Machine:
    """A machine with a store of its own."""

    def __init__(self, root: Path, url: str) -> None:
        self.root, self.url = root, url
        self.heard = Heard()

    def build(self, *, trust: bool) -> dict[str, str]:
        """The digests of what the variants are; `heard` then knows what was done for that."""
        self.heard = Heard()
        report = build(
            RECIPE,
            store=Store(self.root / "store", RemotePlace(self.url)),
            artifacts=self.root / "artifacts",
            overrides=QUICK,
            only=("onnx-int8", "openvino"),
            trust=trust,
            observer=self.heard,
        )
        assert report.exit_code in (0, 5)
        return {name: each.artifact.digest for name, each in report.variants.items() if each.artifact}

    @property
    def steps(self) -> list[str]:
        """What was made here, besides what belongs to one machine.

        The shapes that OpenVINO is the fastest with are measured, and its accuracy is that with them.
        """
        measured = ("latency", "shapes", "openvino › accuracy")
        return [step for step in self.heard.built if not step.endswith(measured)]


@pytest.mark.long
@pytest.mark.slow
def test_a_cold_build_elsewhere_makes_no_step_but_code_that_nobody_trusts(tmp_path):
    url = f"file://{tmp_path}/remote"
    first = Machine(tmp_path / "first", url)
    digests = first.build(trust=False)
    assert set(digests) == {"eager", "onnx-int8", "openvino"}
    assert "onnx-int8 › quantize_nncf" in first.steps

    trusting = Machine(tmp_path / "trusting", url)
    assert trusting.build(trust=True) == digests
    assert trusting.steps == []
    formats = {entry.record["format"] for entry in Store(trusting.root / "store").entries("artifact")}
    assert formats == {Format.TORCH, Format.ONNX, Format.OPENVINO}

    careful = Machine(tmp_path / "careful", url)
    assert careful.build(trust=False) == digests
    assert careful.steps == ["source python"]
    assert any("format torch" in note and "--trust" in note for note in careful.heard.notes)
