"""What the benchmarks of measuring share: models of known size, hogs, processes slower on purpose."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

from optcli import runners
from optcli.artifact import Artifact, Format
from optcli.measure.latency import process
from optcli.measure.latency.messages import MeasureRequest, Opening
from optcli.settings import TensorSpec
from optcli.workers import Channel

CHANNELS = 64
# Side of the image, number of convolutions: about 50 µs, 1 ms, 15 ms and 50 ms on one core of an EPYC.
MODELS = {"small": (12, 1), "medium": (48, 1), "large": (56, 8), "heavy": (112, 7)}
# The processes that optcli starts import this file.
_PATH = [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, _PATH))


def model(name: str, folder: Path) -> tuple[Artifact, tuple[TensorSpec, ...]]:
    """A stack of 3x3 convolutions as an ONNX artifact, and its input."""
    import numpy as np
    from onnx import TensorProto, helper, numpy_helper, save

    side, layers = MODELS[name]
    out = folder / name
    out.mkdir()
    rng = np.random.default_rng(0)
    shape = (CHANNELS, CHANNELS, 3, 3)
    weights = [(0.05 * rng.standard_normal(shape)).astype(np.float32) for _ in range(layers)]
    names = ["x", *(f"h{i}" for i in range(1, layers)), "y"]
    nodes = []
    for number in range(layers):
        conv = [names[number], f"w{number}"], [f"c{number}"]
        nodes.append(helper.make_node("Conv", *conv, pads=[1, 1, 1, 1]))
        nodes.append(helper.make_node("Relu", [f"c{number}"], [names[number + 1]]))
    size = ["batch", CHANNELS, side, side]
    values = [helper.make_tensor_value_info(each, TensorProto.FLOAT, size) for each in ("x", "y")]
    tensors = [numpy_helper.from_array(each, f"w{i}") for i, each in enumerate(weights)]
    graph = helper.make_graph(nodes, name, values[:1], values[1:], tensors)
    path = out / "model.onnx"
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10), path)
    artifact = Artifact(name, Format.ONNX, out, "fp32", path.stat().st_size, name, {"outputs": ["y"]})
    return artifact, (TensorSpec(name="x", shape=("batch", CHANNELS, side, side)),)


def engine(folder: Path) -> tuple[Artifact, tuple[TensorSpec, ...]]:
    """An engine of TensorRT that a build has laid out, with its first profile as the batch's range."""
    from optcli.models.engines import sidecar

    about = sidecar.check_plan(folder)
    specs = []
    for name, sizes in about.profiles[0].items():
        batch = {edge: sizes[edge][0] for edge in ("min", "opt", "max")}
        record = {"name": name, "shape": ["batch", *sizes["opt"][1:]], "batch": batch}
        specs.append(TensorSpec.model_validate(record))
    kind, digest = Format(about.product), about.plan_sha256
    return Artifact(folder.name, kind, folder, about.precision, about.plan_bytes, digest), tuple(specs)


def laid_out(folder: Path) -> tuple[Artifact, tuple[TensorSpec, ...]]:
    """An artifact that a build of ours has laid out, with the inputs that its last pass was given."""
    about = json.loads((folder / "artifact.json").read_text())
    names = ("key", "precision", "size_bytes", "digest", "facts")
    artifact = Artifact(
        format=Format(about["format"]),
        path=folder,
        trusted=True,
        **{name: about[name] for name in names},
    )
    inputs = about["made_by"][-1]["inputs"]
    return artifact, tuple(TensorSpec.model_validate(each) for each in inputs)


@contextmanager
def hogs(count: int) -> Iterator[None]:
    """So many processes beside, each of which keeps a core busy."""
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for each in busy:
            each.kill()
            each.wait()


class Bare(process.MeasuringProcess):
    """ONNX Runtime as its documentation calls it, with optcli's settings and none of its code between.

    `session.run` and not I/O binding: it is what a client writes, and on the CPU the quicker one.
    """

    def _open(self) -> Opening:
        import onnxruntime

        opened = super()._open()
        theirs = cast(Any, self._runner)._session.get_session_options()
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = theirs.intra_op_num_threads
        options.inter_op_num_threads = theirs.inter_op_num_threads
        options.graph_optimization_level = theirs.graph_optimization_level
        options.add_session_config_entry("session.force_spinning_stop", "1")
        self._runner.close()
        path = str(self._artifact.path / "model.onnx")
        self._session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        return opened

    def call(self, batches: list[dict[str, Any]]) -> int:
        """Nanoseconds of `session.run`."""
        feed = batches[self._turn % len(batches)]
        self._turn += 1
        start = time.perf_counter_ns()
        self._session.run(None, feed)
        return time.perf_counter_ns() - start


def serve_bare(request: MeasureRequest, channel: Channel) -> None:
    """A measuring process with a bare loop."""
    process.serve(request, channel, Bare)


def serve_slower(request: MeasureRequest, channel: Channel) -> None:
    """A measuring process whose artifact really takes longer, by the share in `SLOWER`."""
    kind = runners.find(request.runner)
    computes, times, share = kind.execute, kind.host_ns, float(os.environ["SLOWER"])

    def execute(self: Any) -> None:
        start = time.perf_counter_ns()
        computes(self)
        now = time.perf_counter_ns()
        end = now + (now - start) * share
        while time.perf_counter_ns() < end:
            pass

    def host_ns(self: Any) -> int | None:
        """What another interpreter timed, which waits for nobody here."""
        timed = times(self)
        return None if timed is None else round(timed * (1 + share))

    kind.execute = execute  # type: ignore[method-assign]
    kind.host_ns = host_ns  # type: ignore[method-assign]
    process.serve(request, channel)
