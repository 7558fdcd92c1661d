"""optcli's own modules that a key holds: all that make, run or judge an artifact, and no others."""

import ast
import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from tiny_project import CALIBRATION, HEAD

import optcli
from optcli.artifact import Format
from optcli.files.digest import FileDigests
from optcli.pipeline import keys
from optcli.store import Store

PACKAGE = Path(optcli.__file__).parent
HERE = Path(__file__).parent
STARTS = [
    *(
        path.relative_to(PACKAGE).as_posix()
        for room in ("passes", "runners", "models/sources", "accuracy/metrics")
        for path in sorted((PACKAGE / room).glob("[!_]*.py"))
    ),
    *(
        "pipeline/step.py",
        "measure/latency/process.py",
        "accuracy/process.py",
        "measure/latency/shapes.py",
    ),
    *(f"pipeline/{name}.py" for name in ("latency", "accuracy", "shapes")),
    *("pipeline/verification/layers.py", "pipeline/roofline_share.py", "measure/roofline/__init__.py"),
]


@cache
def imported(file: str) -> set[str]:
    """Files of optcli that a file imports where it runs, read with `ast`."""
    found = set()
    for node in ast.walk(_without_types(ast.parse((PACKAGE / file).read_text(encoding="utf-8")))):
        if isinstance(node, ast.Import):
            found |= {_file(alias.name) for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                found.add(_file(f"{node.module}.{alias.name}") or _file(node.module))
    return found - {None}


def _without_types(tree: ast.Module) -> ast.Module:
    kept = [
        node
        for node in tree.body
        if not (isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING")
    ]
    return ast.Module(kept, [])


def _file(name: str) -> str | None:
    parts = name.split(".")
    if parts[0] != "optcli" or len(parts) == 1:
        return None
    base = PACKAGE.joinpath(*parts[1:])
    for path in (base.with_suffix(".py"), base / "__init__.py"):
        if path.is_file():
            return path.relative_to(PACKAGE).as_posix()
    return None


def test_there_are_files_to_look_at():
    assert len(STARTS) > 45
    assert {"passes/prune.py", "runners/torch.py", "models/sources/onnx.py"} <= set(STARTS)


@pytest.mark.slow
@pytest.mark.parametrize("file", STARTS)
def test_the_walk_reaches_whatever_is_imported(file):
    """As read with `ast`, at the top or inside functions; what does not count is left out."""
    reached = {file}
    waiting = [file]
    while waiting:
        new = {each for each in imported(waiting.pop()) if keys.is_counted(each)} - reached
        reached |= new
        waiting.extend(new)
    assert reached <= set(keys.reached((file,)))


def test_statements_and_strings_are_read_and_no_other_words():
    text = """
import optcli.errors
if condition:
    from optcli.store import (
        disk,  # a note, with a comma
        locks as other,
    )
if TYPE_CHECKING:
    from optcli.recipe import Recipe
# What comes from optcli.passes import nothing, and import optcli.report is words.
START = "optcli.pipeline.step:make_source"
"""
    wanted = {"optcli.errors", "optcli.store.disk", "optcli.store.locks", "optcli.pipeline.step"}
    assert set(keys._names(keys._TYPES.sub("", text))) == wanted


def test_a_room_is_all_of_its_modules():
    room = PACKAGE / "models" / "engines"
    wanted = {path.relative_to(PACKAGE).as_posix() for path in room.rglob("*.py")}
    assert len(wanted) > 5
    assert keys.room("models/engines") == sorted(wanted)


def test_what_is_not_counted_is_there_and_says_why():
    for name, reason in keys.NOT_COUNTED.items():
        assert (PACKAGE / name).exists(), name
        assert len(reason.split()) > 1, name


def test_modules_are_imported_by_name_only_where_keys_know_of_it():
    """Whoever comes here: see that `pipeline/keys.py` reaches what is imported, then add it."""
    ours = {
        "files/registry.py",  # passes, runners, sources, metrics, layouts: named by who asks for a key
        "models/formats/__init__.py",  # by format: named by who asks for a key
        "scaffold/inspection/looking.py",  # the whole room is named
        "scaffold/looking.py",  # the draft of a recipe is no result
        "pipeline/model_files/laying_out.py",  # a file that is opened is known by its content
        "measure/profiling/profiler.py",  # a profile is not kept
        "workers/child.py",  # `module:function`, a string that the walk sees
    }
    libraries = {
        "workers/libraries.py",
        *(
            f"models/formats/{name}.py"
            for name in ("exported", "torch_archive", "torch_libraries", "torchscript")
        ),
        "models/formats/onnxruntime_providers.py",
    }
    users = {"settings/user_code.py", "settings/user_imports.py"}
    found = {
        path.relative_to(PACKAGE).as_posix()
        for path in PACKAGE.rglob("*.py")
        if "import_module(" in path.read_text(encoding="utf-8")
    }
    # `engines` runs with other interpreters; verbs and what is deployed are not part of any result.
    found = {each for each in found if not each.startswith(("cli/", "models/engines/", "serving/"))}
    assert found == ours | libraries | users


@pytest.mark.parametrize("runner", ["tensorrt", "tensorrt_rtx"])
def test_what_an_engine_is_run_by_is_part_of_the_key(runner):
    names = set(keys.reached((f"runners/{runner}.py",)))
    running = set(keys.room("models/engines/running")) - {"models/engines/running/__init__.py"}
    assert {
        "models/engines/running/execution.py",
        "models/engines/running/remote_process.py",
    } <= running
    assert running <= names
    assert {f"runners/{runner}.py", "runners/_engine.py", "models/engines/sidecar.py"} <= names
    assert "models/engines/building.py" not in names


def test_what_only_another_process_imports_is_part_of_the_key():
    """The module that builds engines is named in a string: the child imports it."""
    names = keys.reached(("passes/tensorrt_engine.py",))
    assert {"models/engines/building.py", "models/engines/process.py"} <= set(names)


@pytest.mark.parametrize(
    ("runner", "file"),
    [
        ("tensorrt", "models/engines/running/graphs.py"),
        ("onnxruntime", "models/formats/onnxruntime_providers.py"),
        ("torch", "models/formats/torch_calls.py"),
        ("openvino", "measure/latency/machine_state.py"),
    ],
)
def test_a_measurement_is_another_one_where_the_code_that_runs_changed(monkeypatch, runner, file):
    real = FileDigests.of
    before = keys.of_measurement(runner, ["measure/latency/process.py"], FileDigests())
    changed = lambda self, path: "new" if path == PACKAGE / file else real(self, path)  # noqa: E731
    monkeypatch.setattr(FileDigests, "of", changed)
    after = keys.of_measurement(runner, ["measure/latency/process.py"], FileDigests())
    assert {name for name in after if before.get(name) != after[name]} == {file}


@pytest.mark.parametrize(
    ("file", "counts"),
    [
        ("passes/_quantization/transformers.py", True),
        ("passes/_quantization/static_quantization.py", True),
        ("models/formats/onnx.py", True),
        ("runners/openvino.py", False),
        ("passes/prune.py", False),
        ("cli/build.py", False),
        ("report/columns.py", False),
        ("errors/__init__.py", False),
    ],
)
def test_a_step_is_another_one_where_its_own_code_changed_alone(file, counts):
    maker = "passes/quantize_onnxruntime.py"
    found = keys.of_step(maker, [Format.ONNX, Format.ONNX], FileDigests(), checked=False)
    assert (file in found) is counts


def test_a_check_of_onnx_may_run_in_either_runtime():
    """`pipeline/check.py` opens bfloat16, which ONNX Runtime does not have, in OpenVINO."""
    maker, formats = "passes/export_onnx.py", [Format.TORCH, Format.ONNX]
    runtimes = {"runners/onnxruntime.py", "runners/openvino.py"}
    assert runtimes <= set(keys.of_step(maker, formats, FileDigests(), checked=True))
    assert not runtimes.intersection(keys.of_step(maker, formats, FileDigests(), checked=False))


def test_names_in_brackets_over_several_lines_are_found(tmp_path, monkeypatch):
    monkeypatch.setattr(keys, "PACKAGE", tmp_path)
    keys.reached.cache_clear()
    keys._imported.cache_clear()
    keys._file.cache_clear()
    keys._files.cache_clear()
    for name in ("passes/one.py", "passes/_two.py", "passes/_three.py", "passes/_types.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    for name in (
        "models/formats/four.py",
        "models/formats/five.py",
        "passes/__init__.py",
        "errors/__init__.py",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    (tmp_path / "passes" / "one.py").write_text(
        "from optcli.errors import StepError\n"
        "from optcli.passes import (\n    Pass,\n    _two,  # shared\n)\n"
        "if TYPE_CHECKING:\n    from optcli.passes import _types\n\n"
        "def run():\n    from optcli.passes import Pass, _three as other\n"
        "    run('optcli.models.formats.five:work')\n"
    )
    (tmp_path / "passes" / "_three.py").write_text("import optcli.models.formats.four\n")
    found = keys.reached(("passes/one.py",))
    keys.reached.cache_clear()
    keys._imported.cache_clear()
    keys._file.cache_clear()
    keys._files.cache_clear()
    assert set(found) == {
        *("passes/one.py", "passes/__init__.py", "passes/_two.py", "passes/_three.py"),
        *("models/formats/four.py", "models/formats/five.py"),
    }


NETWORK = """\
from torch import nn


class Net(nn.Sequential):
    def __init__(self):
        super().__init__(
            nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(128, 2)
        )
"""
CHAINS = """\
  eager: []
  onnx: [export_onnx]
  tidied: [export_onnx, optimize_onnx]
  onnx-int8: [export_onnx, quantize_onnxruntime]
  nncf: [export_onnx, quantize_nncf]
  openvino: [export_onnx, to_openvino]
  openvino-int8: [export_onnx, to_openvino, quantize_nncf]
  half: [export_onnx, convert_precision]
  traced: [torchscript]
  last: [channels_last]
  pruned: [{prune: {ratio: 0.5}}]
  sparse: [sparsify]
  weights: [weights_only]
  exported: [export]
  pt2e: [quantize_pt2e]
  dynamic: [quantize_dynamic]
"""


@pytest.mark.slow
@pytest.mark.long
def test_every_function_that_runs_in_a_step_belongs_to_its_key(project, unmeasured):
    """Each step of a build once more, with every function of optcli noted that is called."""
    (project.folder / "net.py").write_text(NETWORK)
    head = HEAD.replace("onnx:model.onnx", "python:net.py:Net")
    project.recipe(CHAINS, head=head, data=CALIBRATION)
    project.build(jobs=2)
    calls = sorted(project.store.glob("logs/*/call.json"))
    entries = {entry.key: entry for entry in Store(project.store).entries()}
    traced = [call for call in calls if call.parent.name in entries]
    makers = {entries[call.parent.name].ingredients["step"] for call in traced}
    assert len(makers) >= 15, makers
    output = _traced(*(str(call) for call in traced if entries[call.parent.name].kind == "artifact"))
    assert output
    for key, ran in output.items():
        held = set(entries[key].ingredients["code"])
        missing = {file for file in ran if keys.is_counted(file)} - held
        assert not missing, (entries[key].ingredients["step"], missing)
        assert len(held.intersection(ran)) > 3


def _traced(*arguments: str) -> dict[str, list[str]]:
    """What `traced_calls.py` prints."""
    done = subprocess.run(
        [sys.executable, str(HERE / "traced_calls.py"), *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(PACKAGE.parent)},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])
