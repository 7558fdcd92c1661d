"""The quickstart with the real libraries: here, on a cluster, and on machines with one remote store."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pytest
from needs import REPOSITORY
from ray_cluster import RayCluster
from tiny_project import Heard, build_options

from optcli.artifact import Format
from optcli.pipeline.building import build
from optcli.results import Report
from optcli.store import Store

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.usefixtures("all_unmeasured")]

# What is built, beside the baseline: steps that read calibration, training and validation samples, and
# artifacts of three formats. Their files are the same each time.
PORTABLE, TRAINED = "openvino-int8", "pruned-tuned"
HURRIED = (
    "latency={launches: 1, rounds: 2, calls: 2, warmup: 1, max_seconds: 0.1, threads: 1}",
    "data.calibration.samples=32",
    "data.evaluation.samples=64",
    "data.training.samples=128",
    "data.validation.samples=64",
)


@dataclass
class Machine:
    """A machine with a store of its own; `heard` knows what the last build did."""

    root: Path
    url: str
    heard: Heard = field(default_factory=Heard)

    @property
    def store(self) -> Store:
        return Store.at(self.root / "store", self.url)

    def build(self, *only: str, **options: object) -> Report:
        self.heard = Heard()
        return build(
            REPOSITORY / "recipes" / "quickstart-all.yaml",
            store=self.store,
            artifacts=self.root / "artifacts",
            overrides=HURRIED,
            only=only,
            observer=self.heard,
            **build_options(options),
        )

    @property
    def steps(self) -> list[str]:
        """What was made here, besides what belongs to one machine.

        The shapes that OpenVINO is the fastest with are measured, and its accuracy is that with them.
        """
        measured = ("latency", "shapes", f"{PORTABLE} › accuracy")
        return [step for step in self.heard.built if not step.endswith(measured)]


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory, all_unmeasured: None) -> tuple[Machine, Report]:
    """A machine that made all of it and uploaded that, and its report."""
    root = tmp_path_factory.mktemp("first")
    machine = Machine(root, f"file://{root}/remote")
    report = machine.build(PORTABLE, TRAINED, jobs=2)
    assert report.exit_code in (0, 5)
    assert f"{PORTABLE} › quantize_nncf" in machine.steps
    return machine, report


def kept(store: Store) -> dict[str, str]:
    """The digest of every artifact, by key."""
    return {entry.key: entry.digest for entry in store.entries("artifact")}


def digests(report: Report) -> dict[str, str]:
    """The digest of what each variant came to."""
    return {name: each.artifact.digest for name, each in report.variants.items() if each.artifact}


def judged(report: Report) -> dict[str, list[tuple[str, str]]]:
    """The verdicts on outputs and accuracy: those on latency depend on what else runs here."""
    by_accuracy = ("outputs", "accuracy", "non-inferiority")
    return {
        name: [(each.name, each.outcome) for each in of.verdicts if each.name in by_accuracy]
        for name, of in report.variants.items()
    }


def test_the_quickstart_is_the_same_on_ray(
    first: tuple[Machine, Report], shared_cluster: RayCluster, tmp_path: Path
) -> None:
    """On one node of one core: test_build_on_ray.py and test_judged_on_ray.py have several."""
    here, report = first
    cluster = shared_cluster.settle({"alone": {"cores": 1}})
    there = Machine(tmp_path, f"file://{tmp_path}/remote")
    on_ray = there.build(PORTABLE, TRAINED, ray=cluster.address, jobs=4)
    assert kept(there.store) == kept(here.store)
    assert cluster.results() == len(kept(there.store)) - 1, "all but the source was made on a node"
    assert not [note for note in there.heard.notes if "on this machine" in note], there.heard.notes
    assert {*digests(on_ray)} == {"eager", PORTABLE, TRAINED}
    assert judged(on_ray) == judged(report)


def test_a_cold_build_elsewhere_makes_no_step_but_code_that_nobody_trusts(
    first: tuple[Machine, Report], tmp_path: Path
) -> None:
    here, report = first
    trusting = Machine(tmp_path / "trusting", here.url)
    assert digests(trusting.build(PORTABLE, TRAINED, trust=True)) == digests(report)
    assert trusting.steps == []
    formats = {entry.record["format"] for entry in trusting.store.entries("artifact")}
    assert formats == {Format.TORCH, Format.ONNX, Format.OPENVINO}

    careful = Machine(tmp_path / "careful", here.url)
    assert digests(careful.build(PORTABLE)).items() <= digests(report).items()
    assert careful.steps == ["source python"]
    assert any("format torch" in note and "--trust" in note for note in careful.heard.notes)
