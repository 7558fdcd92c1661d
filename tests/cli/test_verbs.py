"""Every verb: results on stdout, errors on stderr, the documented exit code, nothing heavy imported."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import configured
import pytest
from commands import optcli_process
from tiny_project import DATA, HEAD

REPOSITORY = configured.REPOSITORY
VERBS = (
    "build",
    "compare",
    "verify-accuracy",
    "init",
    "inspect",
    "doctor",
    "cache",
    "cache ls",
    "cache verify",
    "cache why",
    "cache gc",
    "passes",
    "schema",
)


def imported(folder, *lines: str) -> dict[str, set[str]]:
    """The top modules that are there after each of some command lines, all in one new process."""
    program = (
        "import json, sys\n"
        "from optcli.cli import run\n"
        "found = {}\n"
        "for line in sys.argv[1:]:\n"
        "    code = run(line.split())\n"
        "    found[line] = code, sorted({name.partition('.')[0] for name in sys.modules})\n"
        "sys.stderr.write('\\nMODULES ' + json.dumps(found))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *lines],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        check=True,
    )
    found = json.loads(done.stderr.rpartition("MODULES ")[2])
    assert {code for code, _ in found.values()} == {0}, done.stderr
    return {line: set(names) for line, (_, names) in found.items()}


@pytest.mark.slow
def test_the_list_of_verbs_imports_no_verb_and_their_help_nothing_heavy(tmp_path):
    found = imported(tmp_path, "--help", *(f"{verb} --help" for verb in VERBS))
    assert not found["--help"] & {*configured.HEAVY, "pydantic", "ruamel", "rich", "filelock"}
    for line, names in found.items():
        assert not names & {*configured.HEAVY}, line


@pytest.mark.slow
def test_a_cached_build_and_what_only_reads_import_nothing_heavy(place):
    found = imported(
        place.folder,
        "build recipe.yaml",
        "build recipe.yaml --dry-run",
        "compare",
        "verify-accuracy",
        "cache ls",
        "cache verify",
        "cache why recipe.yaml",
        "passes",
        "schema",
    )
    for line, names in found.items():
        assert not names & {*configured.HEAVY, "safetensors"}, line


@pytest.mark.slow
def test_a_cached_build_says_so(place, optcli):
    said = optcli("build", "recipe.yaml")
    assert said.code == 0
    assert said.out.startswith("tiny: ")
    lines = said.err.splitlines()
    assert lines
    assert all(line.startswith("  cached  ") for line in lines)


@pytest.mark.slow
def test_a_fresh_build_says_every_step_accuracy_among_them(place, optcli):
    said = optcli("build", "recipe.yaml", "--store", place.folder / "fresh")
    assert said.code == 0, said.err
    steps = [line.split("  (")[0] for line in said.err.splitlines() if line.startswith("  built")]
    assert steps == [
        "  built   data",
        "  built   source onnx",
        "  built   copied › ./fakes.py:Copy",
        "  built   plain › accuracy",
        "  built   latency",
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "keys"),
    [
        ("build recipe.yaml --json", {"schema", "recipe", "environment", "variants", "exit_code"}),
        ("build recipe.yaml --dry-run --json", {"recipe", "variants"}),
        ("build recipe.yaml --explain --json", {"recipe", "variants"}),
        ("compare --json", {"schema", "recipe", "environment", "variants"}),
        ("verify-accuracy --json", {"baseline", "variants"}),
        ("cache why recipe.yaml --json", {"recipe", "variants"}),
        ("passes --json", {"quantize_nncf"}),
        ("passes prune --json", {"prune"}),
        ("schema", {"properties", "$defs"}),
    ],
)
def test_json_is_all_that_is_on_stdout(place, optcli, line, keys):
    said = optcli(*line.split())
    assert said.code == 0, said.err
    assert keys <= set(json.loads(said.out))


@pytest.mark.parametrize("line", ["cache ls --json", "cache verify --json", "cache gc --json"])
def test_json_lists(place, optcli, line):
    said = optcli(*line.split())
    assert said.code == 0
    assert isinstance(json.loads(said.out), list)
    assert said.err == ""


@pytest.mark.slow
def test_a_damaged_entry_does_not_count_as_sound(place, optcli):
    said = optcli("cache", "verify")
    assert said.code == 0
    before = int(said.out.splitlines()[-1].split()[0])
    assert said.out.endswith(f"{before} entries sound, 0 damaged\n")
    file = next(
        each
        for each in (place.store / "entries").rglob("files/*")
        if each.is_file() and each.stat().st_size
    )
    file.chmod(0o644)
    file.write_bytes(bytes(each ^ 1 for each in file.read_bytes()))
    said = optcli("cache", "verify")
    assert said.code == 4
    assert said.out.endswith(f"{before - 1} entries sound, 1 damaged\n")
    said = optcli("cache", "verify", "--repair")
    assert said.code == 0
    assert said.out.endswith(f"{before - 1} entries sound, 1 damaged and removed\n")


@pytest.mark.slow
def test_json_is_whole_where_a_build_has_warnings(place, optcli):
    talk = '  plain: []\n  bad: [{"./fakes.py:Misbehave": {way: raise}}]\n'
    talk += '  two: [{"./fakes.py:Convert": {wrong: true, way_out: true}}]\n'
    place.recipe(talk, data=DATA)
    said = optcli("build", "recipe.yaml", "--json")
    assert said.code == 4
    report = json.loads(said.out)
    assert report["exit_code"] == 4
    assert "no such luck" in report["variants"]["bad"]["reason"]
    assert "  FAILED  bad" in said.err
    assert "  note    two" in said.err


@pytest.mark.slow
def test_the_same_report_from_its_place_its_recipe_and_its_name(place, optcli):
    report = place.artifacts / "tiny" / "report.json"
    said = [optcli("compare", *where) for where in ((), ("recipe.yaml",), ("tiny",), (report,))]
    assert {one.code for one in said} == {0}
    assert len({one.out for one in said}) == 1
    assert "plain" in said[0].out
    assert optcli("compare", "--markdown").out.count("|") > 10


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "code", "says"),
    [
        ("", 2, "Usage: optcli"),
        ("cache", 2, "Usage: optcli cache"),
        ("bild", 2, "error: optcli: unknown verb 'bild'\n  hint: did you mean 'build'?"),
        ("build", 2, "Missing argument 'RECIPE'.\n  hint: `optcli init MODEL --out"),
        ("build recipe.yaml --jbos 2", 2, "--jobs"),
        ("build recipe.yaml --jobs 0", 2, "--jobs"),
        ("build recipe.yaml --timeout nan2", 2, "--timeout"),
        ("build recipe.yaml --only cpoied", 2, "no variant 'cpoied'\n  hint: did you mean 'copied'?"),
        ("build recipe.yaml --set latency.treads=1", 2, "--set latency.treads=1: unknown key 'treads'"),
        ("build recipe.yaml --set latency", 2, "wanted KEY=VALUE"),
        ("build recpie.yaml", 2, "there is no file recpie.yaml\n  hint: did you mean 'recipe.yaml'?"),
        ("build images", 2, "is a folder, wanted a recipe"),
        ("build recipe.yaml --store model.onnx", 2, "--store"),
        ("build recipe.yaml --artifacts model.onnx", 2, "--artifacts"),
        ("compare tniy", 2, "no report here yet\n  hint: "),
        ("compare nothing.json", 2, "no report here yet\n  hint: "),
        ("compare model.onnx", 2, "no report here yet\n  hint: "),
        ("verify-accuracy --artifacts elsewhere", 2, "no report here yet\n  hint: "),
        ("cache why recipe.yaml cpoied", 2, "no variant 'cpoied'"),
        ("cache lss", 2, "'ls'"),
        ("cache gc --older-than 3x", 2, "--older-than: found '3x'"),
        ("cache gc --max-size 3", 2, "--max-size: found '3'"),
        ("passes qantize_nncf", 2, "'qantize_nncf'\n  hint: did you mean 'quantize_nncf'?"),
        ("passes ./gone.py:Pass", 2, "no such file: gone.py\n  hint: "),
        ("passes fakes.py:project", 2, "defines no 'project'"),
    ],
)  # fmt: skip
def test_a_wrong_command_line_ends_with_2_on_stderr(place, optcli, nothing_lost, line, code, says):
    said = optcli(*line.split())
    assert said.code == code
    assert said.out == ""
    assert says in said.err
    assert "Traceback" not in said.err
    nothing_lost()


def test_a_report_that_is_damaged(place, optcli):
    path = place.artifacts / "tiny" / "report.json"
    for text in ("garbage", "{}", "[]", ""):
        path.write_text(text)
        said = optcli("compare")
        assert said.code == 2
        assert f"{path}: this is not a readable report" in said.err
        assert "hint: run `optcli build" in said.err


def test_a_bug_is_called_one(place, optcli, monkeypatch):
    from optcli.pipeline import preview

    def broken(*_: object, **__: object) -> None:
        raise KeyError("of optcli's own making")

    monkeypatch.setattr(preview, "preview", broken)
    said = optcli("build", "recipe.yaml", "--dry-run")
    assert said.code == 70
    assert "Traceback" in said.err
    assert "this is a bug in optcli" in said.err


@pytest.mark.parametrize(
    ("number", "hint"),
    [
        (errno.EACCES, "look at space, permissions"),
        (errno.ENOSPC, "make room"),
        (errno.EFBIG, "make room"),
    ],
)
def test_what_the_system_refuses_is_no_bug(place, optcli, monkeypatch, number, hint):
    from optcli.pipeline import preview

    def refused(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number), "/somewhere/file")

    monkeypatch.setattr(preview, "preview", refused)
    said = optcli("build", "recipe.yaml", "--dry-run")
    assert said.code == 4
    words = f"error: /somewhere/file: the system refused: {os.strerror(number)}\n  hint: {hint}"
    assert words in said.err


@pytest.mark.long
@pytest.mark.slow
def test_verbose_says_keys_and_logs(place):
    place.recipe('  plain: []\n  other: [{"./fakes.py:Copy": {note: v}}]\n', data=DATA)
    said = optcli_process("build", "recipe.yaml", "-v", folder=place.folder)
    assert said.code == 0, said.err
    (line,) = [one for one in said.err.splitlines() if "optcli.pipeline.execute: other" in one]
    assert "log.txt" in line
    assert "optcli.build" not in optcli_process("build", "recipe.yaml", folder=place.folder).err


@pytest.mark.slow
@pytest.mark.parametrize(
    "where", ["recipe.yaml", "./recipe.yaml", "../project/recipe.yaml", "{}/recipe.yaml"]
)
def test_a_recipe_may_be_named_in_any_way(place, optcli, where):
    said = optcli("build", where.format(place.folder), "--dry-run")
    assert said.code == 0, said.err
    assert "to do" not in said.out, "its name is part of no key"


@pytest.mark.slow
def test_two_recipes_of_one_name_share_the_work(place, optcli):
    (place.folder / "second.yaml").write_text(
        HEAD + DATA + '  \nvariants:\n  same: ["./fakes.py:Copy"]\n'
    )
    said = optcli("build", "second.yaml")
    assert said.code == 0, said.err
    assert "built   same" not in said.err
    assert json.loads(optcli("compare", "--json").out)["variants"].keys() == {"same"}


@pytest.mark.long
@pytest.mark.slow
def test_names_with_spaces_and_beyond_ascii(tmp_path):
    from tiny_project import write_images, write_model

    folder = tmp_path / "ü ber ﻿目录 ☃"
    folder.mkdir()
    write_model(folder / "mö del.onnx")
    write_images(folder / "bil der é")
    head = HEAD.replace("model.onnx", "mö del.onnx")
    data = DATA.replace("imagefolder:images", "imagefolder:bil der é")
    own = '  mine: ["./pä ss/mine.py:Copy"]\n'
    (folder / "pä ss").mkdir()
    (folder / "pä ss" / "mine.py").write_text((REPOSITORY / "tests" / "fakes.py").read_text())
    (folder / "re zept é.yaml").write_text(
        f"{head}{data}variants:\n  plain: []\n{own}", encoding="utf-8"
    )
    for locale in ("C.UTF-8", "C"):
        said = optcli_process("build", "re zept é.yaml", folder=folder, LC_ALL=locale, OPTCLI_STORE="")
        assert said.code == 0, said.err
        assert (folder / "artifacts" / "tiny" / "mine" / "model.onnx").is_file()
    built = [line for line in said.err.splitlines() if line.startswith("  built")]
    # A latency that a busy machine spoiled is measured again.
    assert not [line for line in built if "latency" not in line], said.err
    said = optcli_process("compare", folder=folder, PYTHONIOENCODING="ascii")
    assert said.code == 0, said.err
    assert "plain" in said.out


@pytest.mark.slow
@pytest.mark.usefixtures("ready")
@pytest.mark.parametrize(
    "recipe", sorted((REPOSITORY / "recipes").glob("*.yaml")), ids=lambda path: path.name
)
def test_the_ready_recipes_pass_a_dry_run(recipe, tmp_path, monkeypatch, optcli):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPTCLI_STORE", "")
    said = optcli("build", recipe, "--dry-run")
    assert said.code == 0, said.err
    assert "to do" in said.out
    assert not list(tmp_path.iterdir()), "a dry run writes nothing"


@pytest.mark.slow
def test_what_takes_too_long_is_named_with_its_log(place, optcli):
    fresh = place.folder / "fresh"
    said = optcli("build", "recipe.yaml", "--store", fresh, "--timeout", "0.001")
    assert said.code == 4
    assert "error: data: it did not finish within 0.001 s and was stopped\n" in said.err
    assert f"raise the limit with --timeout; log: {fresh}" in said.err


CRASHING = """
from optcli.runners.onnxruntime import OnnxruntimeRunner
import os
print("last words of the runtime", flush=True)
OnnxruntimeRunner.execute = lambda self: os.abort()
"""


@pytest.mark.slow
@pytest.mark.usefixtures("cold_workers")
def test_a_runtime_that_crashes_while_measured_is_named_with_its_log(place, optcli, monkeypatch):
    site = place.folder / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(
        f"import sys\nif 'optcli.workers.child' in sys.orig_argv:\n    exec({CRASHING!r})\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(site))
    said = optcli("build", "recipe.yaml", "--remeasure")
    assert said.code == 4, said.err
    assert "aborted" in said.out
    report = json.loads((place.artifacts / "tiny" / "report.json").read_text())
    log = report["variants"]["plain"]["log"]
    assert log in said.out
    assert "last words of the runtime" in Path(log).read_text()


def test_a_model_in_the_place_of_a_recipe(place, optcli):
    for verb in (("build",), ("gate", "--baseline", "x"), ("cache", "why")):
        said = optcli(*verb, "model.onnx")
        assert said.code == 2
        assert "model.onnx: this is a model file, wanted a recipe" in said.err
        assert "optcli init model.onnx" in said.err


def test_a_file_that_is_not_there_is_looked_for_beside(place, optcli):
    said = optcli("inspect", "modle.onnx")
    assert (said.code, "there are: model.onnx" in said.err) == (2, True)
    said = optcli("init", "images")
    assert (said.code, "this is a folder, wanted a model" in said.err) == (2, True)


def test_a_model_without_permission_to_read_it(place, optcli, monkeypatch):
    import os

    known = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: "model" not in str(path) and known(path, mode))
    for verb in ("inspect", "init"):
        said = optcli(verb, "model.onnx")
        assert said.code == 2
        assert "cannot be read\n  hint: look at its permissions" in said.err


def test_a_report_that_is_a_folder_is_said(place, optcli):
    (place.folder / "x.json").mkdir()
    said = optcli("compare", "x.json")
    assert (
        said.code,
        "the report cannot be read: found a folder, wanted a regular file" in said.err,
    ) == (2, True)
