"""optcli's own files that a key holds: what makes or runs an artifact, however it is imported."""

import ast
from pathlib import Path

import pytest

import optcli
from optcli.digest import FileDigests
from optcli.pipeline.plan import _with_shared, own_code

PACKAGE = Path(optcli.__file__).parent
FILES = sorted(
    path.relative_to(PACKAGE).as_posix()
    for room in ("passes", "runners", "sources")
    for path in (PACKAGE / room).glob("[!_]*.py")
)


def in_the_key(file: str) -> set[str]:
    return {path.relative_to(PACKAGE).as_posix() for path in _with_shared(PACKAGE / file)}


def imported(path: Path) -> set[Path]:
    """The modules of optcli that a file imports, read with `ast`."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    files = {
        PACKAGE.joinpath(*name.split(".")[1:]).with_suffix(".py")
        for name in names
        if name and name.startswith("optcli.")
    }
    return {path for path in files if path.is_file()}


def test_there_are_files_to_look_at():
    assert len(FILES) > 30
    assert {"passes/prune.py", "runners/torch.py", "sources/onnx.py"} <= set(FILES)


@pytest.mark.parametrize("file", FILES)
def test_a_key_holds_all_code_that_makes_or_runs_an_artifact(file):
    """Modules of `formats` and `engines`, and the private ones of the file's room, however far away."""
    room = PACKAGE / Path(file).parts[0]
    reached = [PACKAGE / file]
    for each in reached:  # which grows
        for path in sorted(imported(each).difference(reached)):
            private = path.parent == room and path.name.startswith("_")
            if private or path.relative_to(PACKAGE).parts[0] in ("engines", "formats"):
                reached.append(path)
    assert {path.relative_to(PACKAGE).as_posix() for path in reached} <= in_the_key(file)


@pytest.mark.parametrize("runner", ["tensorrt", "tensorrt_rtx"])
def test_what_an_engine_is_run_by_is_part_of_the_key(runner):
    names = in_the_key(f"runners/{runner}.py")
    running = {
        path.relative_to(PACKAGE).as_posix()
        for path in (PACKAGE / "engines" / "running").glob("[!_]*.py")
    }
    assert {"engines/running/execution.py", "engines/running/remote_process.py"} <= running
    assert running <= names
    assert {f"runners/{runner}.py", "runners/_engine.py", "engines/sidecar.py"} <= names
    assert "engines/building.py" not in names


def test_what_only_another_process_imports_is_part_of_the_key():
    """The module that builds engines is named in a string: the child imports it."""
    assert "engines/building.py" in in_the_key("passes/tensorrt_engine.py")
    assert "engines/process.py" in in_the_key("passes/tensorrt_engine.py")


@pytest.mark.parametrize(
    ("runner", "file"),
    [
        ("tensorrt", "engines/running/graphs.py"),
        ("onnxruntime", "formats/onnxruntime_providers.py"),
        ("torch", "formats/torch_calls.py"),
    ],
)
def test_a_measurement_is_another_one_where_the_code_that_runs_changed(monkeypatch, runner, file):
    real = FileDigests.of
    before = own_code(runner, (), FileDigests())
    monkeypatch.setattr(
        FileDigests, "of", lambda self, path: "new" if path == PACKAGE / file else real(self, path)
    )
    assert own_code(runner, (), FileDigests()) != before


def test_names_in_brackets_over_several_lines_are_found(tmp_path, monkeypatch):
    from optcli.pipeline import plan

    monkeypatch.setattr(plan, "_PACKAGE", tmp_path)
    for name in ("passes/one.py", "passes/_two.py", "passes/_three.py", "formats/four.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("")
    (tmp_path / "passes" / "one.py").write_text(
        "from optcli.passes import (\n    Pass,\n    _two,  # shared\n)\n"
        "def run():\n    from optcli.passes import Pass, _three as other\n"
    )
    (tmp_path / "passes" / "_three.py").write_text("import optcli.formats.four\n")
    found = {path.relative_to(tmp_path).as_posix() for path in _with_shared(tmp_path / "passes/one.py")}
    assert found == {"passes/one.py", "passes/_two.py", "passes/_three.py", "formats/four.py"}
