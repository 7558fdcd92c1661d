"""A tiny project in git before the gate, with scripted launch pairs instead of measured ones."""

from __future__ import annotations

import shutil
import subprocess

import numpy as np
from tiny_project import DATA, Heard

from optcli.gate import comparisons
from optcli.gate import running as gating
from optcli.gate.latency import Timed
from optcli.gate.rule import decide, planned
from optcli.measure import latency
from optcli.settings.gate import GateBar, GateSettings

PLAIN = "  plain: []\n"
COPIED = PLAIN + '  copied: {passes: [{"./fakes.py:Copy": {note: %s}}], gate: true}\n'
# A small loss is allowed.
BARRED = DATA.replace("max_drop: 0.5", "max_drop: 0.01")
BAR = GateBar(limit=0.05)
RULE = planned(BAR, GateSettings(), 1)
# A log ratio that stands for pairs which differ wildly.
WILD = 0.123456


def git(folder, *arguments):
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", "-C", str(folder), *identity, *arguments], check=True, capture_output=True)


def commit(project, message):
    git(project.folder, "add", ".")
    git(project.folder, "commit", "-qm", message)


def write_separable(folder, count=80):
    """Images of two classes, bright left or right, and a classifier that is always right."""
    import onnx
    from onnx import numpy_helper
    from PIL import Image

    shutil.rmtree(folder / "images")
    generator = np.random.default_rng(0)
    left = np.arange(4) < 2
    for index in range(count):
        place = folder / "images" / ("a", "b")[index % 2]
        place.mkdir(parents=True, exist_ok=True)
        bright = left if index % 2 == 0 else ~left
        pixels = generator.integers(0, 100, (4, 4, 3)) + 150 * bright[None, :, None]
        Image.fromarray(pixels.astype(np.uint8)).save(place / f"{index:02}.png")
    weight = np.stack([np.tile(left, 12), np.tile(~left, 12)], axis=1).astype(np.float32)
    model = onnx.load(folder / "model.onnx")
    model.graph.initializer[0].CopyFrom(numpy_helper.from_array(weight, "weight"))
    onnx.save(model, folder / "model.onnx")


class Script:
    """Scripted launch pairs: `growth` holds the log ratios of each measurement in turn."""

    def __init__(self):
        self.growth, self.seen, self.slo, self.feeds = [0.0], [], [], []

    def __call__(self, gating, before, now, variants, seed, place=None):
        self.seen.append((before, now, gating.settings, seed))
        self.slo.append(gating.slo)
        self.feeds.append(gating.made.feeds)
        value = self.growth[min(len(self.seen), len(self.growth)) - 1]
        ratios = [value + x / 1e4 for x in range(8)]
        if value is WILD:
            ratios = [(-1) ** x * (0.3 + x / 50) for x in range(24)]
        decision = decide(ratios, RULE)
        found = comparisons.latency("p50", 1, 1.0, 1.0 + value, decision, RULE, BAR)
        measured = latency.Measured(
            baseline=before.name, measured_at="", settings={}, seed=seed, real_inputs=False,
            groups=((before.name, now.name),), lead_in=2, seconds={"wall": 1.0},
        )  # fmt: skip
        return Timed((found,), measured, ())


def explained(real):
    """The real explanation, without profiling."""
    import optcli.gate.explain as module

    def explain(*arguments):
        module_times = module._operators
        module._operators = lambda *_: []
        try:
            return real(*arguments)
        finally:
            module._operators = module_times

    return explain


def judge(project, reference="git:HEAD", accept=("untracked-data",), **options):
    """The gate's report. The images of the project lie outside of git: that is declared."""
    return gating.gate(
        project.folder / "recipe.yaml",
        reference,
        gating.GateRun(accept=frozenset(accept), **options),
        store=project.store,
        artifacts=project.artifacts,
        observer=Heard(),
    )


def of(report, metric, variant="copied"):
    return next(each for each in report.variants[variant].comparisons if each.metric == metric)
