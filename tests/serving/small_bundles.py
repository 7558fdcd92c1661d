"""Bundles for Ray of small networks, and a model that waits until a test lets it go on."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

import optcli
from optcli.pipeline.model_files.built_variant import BuiltVariant
from optcli.results import RecipeSummary
from optcli.results.plan import Plan
from optcli.serving.bundle import FILE, Bundle, read
from optcli.serving.deploy import extras, ray_bundle, ray_config, ray_runtimes
from optcli.serving.deploy.interface import Interface, LookRequest, look
from optcli.serving.loadtest import opening
from optcli.serving.running import Running
from optcli.serving.targets import DeployOptions

# The model computes while the file `open` lies beside it, and waits for it otherwise; with priorities
# that of its own application. A file `called-PID` says that this replica was called.
_GATED = """
from ray import serve

class Gated(Model):
    def __init__(self, folder, bundle):
        super().__init__(folder, bundle)
        own = serve.get_replica_context().app_name.partition("-")[2]
        compute, gate = self.run, folder.parent / (f"open-{own}" if own else "open")

        def run(feed):
            (folder.parent / f"called-{os.getpid()}").touch()
            while not gate.exists():
                time.sleep(0.005)
            return compute(feed)

        self.run = run


Model = Gated
"""


def sealed_plan(**settings: object) -> Plan:
    """A plan for Ray, with batches of several requests."""
    asked = {"curve": "6ms+1ms*b", "rate_per_s": 200, "slo": {"p95_ms": 60}, "batch": 4}
    made = optcli.plan(**{**asked, "target": "ray", **settings})
    assert made.recommended is not None
    return made


def looked_at(built: BuiltVariant, out: Path) -> Interface:
    """The interface of a small variant, as deploy asks for it."""
    out.mkdir(exist_ok=True, parents=True)
    asked = LookRequest(
        "small",
        built.artifact,
        built.runner_name,
        built.options,
        built.inputs,
        out,
        seed=3,
        target="ray",
    )
    return look(asked, None)  # type: ignore[arg-type]


def bundled(
    built: BuiltVariant, plan: Plan, out: Path, wait_ms: float | None = None, **asked: bool
) -> ray_bundle.Prepared:
    """Write a bundle into a folder, as deploy does."""
    interface = looked_at(built, out)
    recipe = RecipeSummary(name="small", path="small.yaml", digest="digest")
    runtime = ray_runtimes.runtime_of(built)
    lanes = ray_config.lanes_of(plan, wait_ms, force=True)
    prepared = ray_bundle.prepared("small", built, recipe, interface, runtime, plan, lanes)
    more = extras.extras_of(built, interface, "small", out / "log", DeployOptions(**asked))
    prepared = replace(prepared, bundle=more.applied(prepared.bundle))
    ray_bundle.write(out, built, prepared, plan)
    more.write(out, built)
    return prepared


def changed(folder: Path, **fields: object) -> Bundle:
    """Write other values into bundle.json, as a person could."""
    path = folder / FILE
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))
    return read(folder)


def gate(folder: Path, *priorities: str) -> Path:
    """Make a bundle's model wait for a file, which is there at first; gives the file.

    With priorities each waits for a file of its own, and the folder of these is given.
    """
    with (folder / "model.py").open("a") as model:
        model.write("import os, time  # noqa: E402\n" + _GATED)
    for name in priorities:
        (folder / f"open-{name}").touch()
    (folder / "open").touch()
    return folder if priorities else folder / "open"


def already_started(server: Running, patch: pytest.MonkeyPatch) -> list[str]:
    """Load tests find this server where they would start a bundle's; gives what they start and stop.

    test_loadtest_bundle.py has one that starts its own.
    """
    seen: list[str] = []

    @contextmanager
    def instead(folder: Path, **_: object) -> Iterator[Running]:
        seen.append(f"started {folder.name}")
        yield server
        seen.append(f"stopped {folder.name}")

    patch.setattr(opening, "running", instead)
    return seen
