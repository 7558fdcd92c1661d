"""torch.compile: right at every size, warm from its seed in a new process, bound to this CPU."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tiny_networks import INPUTS, Heard, apply, artifact, job, largest_error, torch_artifact

from optcli import environment
from optcli.artifact import Artifact, Format
from optcli.errors import MissingError, StepError
from optcli.models.formats import torch as torch_format
from optcli.models.formats import torch_compiled
from optcli.passes.channels_last import ChannelsLast
from optcli.passes.torch_compile import TorchCompile
from optcli.runners.torch import TorchRunner
from optcli.workers import messages

pytestmark = [pytest.mark.slow, pytest.mark.long]

# A step compiles in a process of its own; importing torchao there changes Inductor's configuration.
COMPILE = """
import importlib, json, sys
from pathlib import Path
from tiny_networks import INPUTS, apply, torch_artifact
from optcli.models.formats import exported
from optcli.passes.torch_compile import TorchCompile
from optcli.workers import messages

importlib.import_module(exported.QUANTIZED)
folder = Path(sys.argv[1])
source = torch_artifact(folder / "a", "Conv")
made = apply(TorchCompile(), source, folder / "made", INPUTS["Conv"], batch_sizes=(1, 2))
print(json.dumps([messages.to_record(made), messages.to_record(source)]))
"""
WARM = """
import json, sys
from tiny_networks import INPUTS, largest_error
from optcli.artifact import Artifact
from optcli.runners.torch import TorchRunner
from optcli.workers import messages

made, source = (messages.read(Artifact, record) for record in json.load(open(sys.argv[1])))
with TorchRunner(threads=1).open(made, INPUTS["Conv"]) as model:
    effective = model.effective()
error = largest_error(TorchRunner(threads=1), made, source, INPUTS["Conv"], (1, 2, 5, 12))
print(json.dumps({**effective, "error": error}))
"""


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """A network and the same compiled."""
    folder = tmp_path_factory.mktemp("compiled")
    made, source = (messages.read(Artifact, each) for each in in_a_process(COMPILE, folder, folder))
    return source, made


def in_a_process(code: str, argument: Path, temporary: Path) -> Any:
    """What a fresh process prints on its last line, as JSON."""
    tests = Path(__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-c", code, str(argument)],
        env={**os.environ, "PYTHONPATH": str(tests), "TMPDIR": str(temporary)},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return json.loads(done.stdout.splitlines()[-1])


def started_anew(folder: Path, made: Artifact, source: Artifact) -> dict:
    """What a fresh process says of the artifact."""
    (folder / "artifacts.json").write_text(
        json.dumps([messages.to_record(made), messages.to_record(source)])
    )
    return in_a_process(WARM, folder / "artifacts.json", folder)


def test_a_new_process_starts_warm_and_leaves_the_seed_alone(compiled, tmp_path):
    source, made = compiled
    before = {path: path.read_bytes() for path in made.path.rglob("*") if path.is_file()}
    for path in before:
        path.chmod(0o444)  # as the store has them
    found = started_anew(tmp_path, made, source)
    assert found["kernels_compiled_at_load"] == 0
    assert found["error"] < 1e-5
    assert (found["compile"], found["freezing"], found["dynamic"]) == ("default", True, True)
    assert {path: path.read_bytes() for path in made.path.rglob("*") if path.is_file()} == before
    assert [path.name for path in tmp_path.iterdir()] == ["artifacts.json"]


def test_what_was_done_is_told(compiled):
    facts = compiled[1].facts["torch_compile"]
    assert facts["compiled_batch_sizes"] == [4, 2, 12, 1]
    assert facts["kernels"] > 0
    assert facts["largest_relative_error"] < 1e-5
    assert not list((compiled[1].path / torch_compiled.SEED).rglob("*.lock"))


@pytest.mark.parametrize("dynamic", [True, False])
def test_weights_that_are_packed_on_every_call_are_never_silent(tmp_path, monkeypatch, dynamic):
    monkeypatch.setattr("optcli.artifact._COSTLY_TIME", 0.0)  # whatever it takes here and now
    inputs, source, heard = INPUTS["Conv"], torch_artifact(tmp_path / "a", "Conv"), Heard()
    to_do = job(source, tmp_path / "made", inputs, observer=heard, batch_sizes=(2,))
    made = TorchCompile(dynamic=dynamic).run(source, to_do)
    (count,) = (each["weights"] for each in made.facts["packs_each_call"].values())
    warned = f"at batch size 2 {count} weights are packed on every call: set `dynamic: false`"
    assert (count > 0, heard.warnings) == ((True, [warned]) if dynamic else (False, []))


def test_it_can_be_run_as_the_network_it_is(compiled):
    source, made = compiled
    eager = TorchRunner(threads=1, compile=False)
    with eager.open(made, INPUTS["Conv"]) as model:
        assert model.effective()["compile"] is False
    assert largest_error(eager, made, source, INPUTS["Conv"], (1, 3)) == 0


def test_one_graph_for_each_size_autocast_and_channels_last(tmp_path):
    inputs, source = INPUTS["Conv"], torch_artifact(tmp_path / "a", "Conv")
    layout = apply(ChannelsLast(), source, tmp_path / "layout", inputs)
    one = TorchCompile(dynamic=False, freezing=False, channels_last=True, autocast="bf16")
    made = apply(one, layout, tmp_path / "made", inputs, batch_sizes=(2,))
    assert made.facts["torch_compile"]["compiled_batch_sizes"] == [2]
    assert made.precision == "bf16"
    names = [record["name"] for record in torch_format.read(made.path).transforms]
    assert names == ["channels_last", "autocast", "compile"]
    with TorchRunner(threads=1).open(made, inputs) as model:
        effective = model.effective()
    assert effective["kernels_compiled_at_load"] == 0
    assert (effective["precision"], effective["autocast"]) == ("bf16", "bf16")
    assert (effective["channels_last"], effective["dynamic"]) == (True, False)
    assert 0 < largest_error(TorchRunner(threads=1), made, source, inputs, (2,)) < 2e-2


def test_what_does_not_help_here_is_said(monkeypatch, tmp_path):
    monkeypatch.setattr(environment, "computes_in", lambda precision: False)
    source, heard = artifact(tmp_path, Format.TORCH), Heard()
    one = TorchCompile(mode="reduce-overhead", autocast="fp16")
    one._warn(job(source, tmp_path / "out", INPUTS["Conv"], observer=heard))
    assert ["on a CPU" in text for text in heard.warnings] == [True, False]
    assert "no fp16 instructions" in heard.warnings[1]


def test_a_wrong_result_is_an_error(monkeypatch, tmp_path):
    import torch

    from optcli.models.formats.torch_compiled import Compilation

    inputs, source = INPUTS["Conv"], torch_artifact(tmp_path / "a", "Conv")
    monkeypatch.setattr(Compilation, "apply", lambda self, model: lambda *args: model(*args) * 1.001)
    with pytest.raises(StepError, match="the compiled network computes something else"):
        TorchCompile().run(source, job(source, tmp_path / "made", inputs))
    monkeypatch.setattr(Compilation, "apply", lambda self, model: lambda *args: torch.full((1,), 1.0))
    with pytest.raises(StepError, match="the compiled network computes something else"):
        TorchCompile().run(source, job(source, tmp_path / "again", inputs))


def test_it_is_not_compiled_twice(compiled, tmp_path):
    with pytest.raises(StepError, match="compiled already"):
        TorchCompile().run(compiled[1], job(compiled[1], tmp_path / "made", INPUTS["Conv"]))


def test_without_a_compiler_it_says_what_to_install(tmp_path):
    from torch._inductor import config

    inputs, source = INPUTS["Conv"], torch_artifact(tmp_path / "a", "Conv")
    nowhere = {"cpp.cxx": (None, str(tmp_path / "no-such-compiler"))}
    with config.patch(nowhere), pytest.raises(MissingError) as failure:
        TorchCompile().run(source, job(source, tmp_path / "made", inputs))
    assert "g++" in failure.value.hint


def test_where_compiling_fails_less_is_asked_of_it():
    ways = [(True, True), (False, True), (False, False)]
    for number, (dynamic, freezing) in enumerate(ways):
        tried = TorchCompile(dynamic=dynamic, freezing=freezing).attempts()
        assert [(each.dynamic, each.freezing) for each in tried] == ways[number:]


def test_it_is_bound_to_the_machine_and_the_measured_sizes():
    assert TorchCompile.device_bound
    assert TorchCompile.uses_batch_sizes


@pytest.mark.parametrize(
    ("machine", "said", "wanted"),
    [("x86_64", None, {"cpp.vec_isa_ok": True}), ("x86_64", False, {}), ("aarch64", None, {})],
)
def test_only_instructions_that_every_compiler_knows_are_not_tried(monkeypatch, machine, said, wanted):
    from torch._inductor import config

    monkeypatch.setattr("platform.machine", lambda: machine)
    with config.patch({"cpp.vec_isa_ok": said}):
        assert torch_compiled.instructions() == wanted
