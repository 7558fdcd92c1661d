"""docs/tutorials/, followed to the letter: every file written, every command run, what it prints."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from commands import hurried, optcli_here
from pages import REPOSITORY, Command, Tutorial, missing_lines

from optcli.serving.loadtest import opening
from optcli.tuning.strategy import Strategy

TUTORIALS = REPOSITORY / "docs" / "tutorials"
NAMES = sorted(path.name for path in TUTORIALS.glob("*.md"))
# Followed as a reader does, in processes of its own and without what another tutorial has built.
ALONE = "first-model.md"
MEASURING = tuple(f"optcli {verb}" for verb in ("bench", "build", "gate", "loadtest", "tune"))
IDENTITY = {
    f"GIT_{role}_{what}": value
    for role in ("AUTHOR", "COMMITTER")
    for what, value in {"NAME": "Reader", "EMAIL": "reader@example.org"}.items()
}


def run(command: Command, folder: Path, store: str, *, here: bool) -> tuple[int, str]:
    """Carry out one command line, as somebody does who has optcli installed: its exit code and text.

    Builds, searches and load tests measure less than they do for a reader: what a page shows holds all
    the same. The text holds both streams, in the order in which a terminal shows them. `here`: in this
    process.
    """
    program, *arguments = shlex.split(command.line)
    if program == "optcli":
        arguments = hurried(arguments)
    variables = {
        **IDENTITY,
        "PYTHONPATH": str(REPOSITORY),
        "OPTCLI_STORE": store,
        "COLUMNS": "200",
    }
    if here and program == "optcli":
        said = optcli_here(*arguments, folder=folder, together=True, **variables)
        return said.code, said.out
    programs = {"optcli": [sys.executable, "-m", "optcli"], "python": [sys.executable], "git": ["git"]}
    done = subprocess.run(
        [*programs[program], *arguments],
        cwd=folder,
        env={**os.environ, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=550,
        check=False,
    )
    return done.returncode, done.stdout


@contextlib.contextmanager
def one_server_a_bundle() -> Iterator[None]:
    """Load tests of this process share the server of a bundle, which takes seconds to start."""
    start, found = opening.running, {}

    @contextlib.contextmanager
    def running(folder: Path, **options: Any) -> Iterator[Any]:
        if folder not in found:
            found[folder] = servers.enter_context(start(folder, **options))
        yield found[folder]

    with pytest.MonkeyPatch.context() as patch, contextlib.ExitStack() as servers:
        patch.setattr(opening, "running", running)
        yield


def follow(page: Path, folder: Path, store: str = "") -> None:
    """Do what a tutorial says in a folder of its own; fails over the first step that differs.

    The last command has a process of its own, but for those that would measure again where the machine
    is busy, and `loadtest`, which would start the server again; of one page all commands have.
    """
    tutorial = Tutorial.read(page)
    assert tutorial.commands
    if tutorial.in_checkout:
        for part in ("recipes", "calibration_data"):
            shutil.copytree(REPOSITORY / part, folder / part)
    for step in tutorial.steps:
        if not isinstance(step, Command):
            path = folder / step[0]
            path.parent.mkdir(parents=True, exist_ok=True)
            # A gate on the page measures for as long as its reader waits.
            path.write_text(step[1].replace("max_seconds: 20", "max_seconds: 0.5"), encoding="utf-8")
            continue
        measuring = step.line.startswith(MEASURING)
        last = step is tutorial.commands[-1] and not measuring
        here = page.name != ALONE and not last
        code, text = run(step, folder, store, here=here)
        said = f"{step.line}: exit code {code}\n{text}"
        assert code in step.codes, said
        missing = missing_lines(step.shown, text)
        assert missing == [], f"the page shows {missing}; {said}"


@pytest.fixture
def hurried_searches(monkeypatch):
    """A search ends after three trials."""
    usual = Strategy.next
    monkeypatch.setattr(Strategy, "next", lambda *about: usual(*about) if len(about[1]) < 3 else None)


ENGINES = "gpu-and-tensorrt.md"


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.usefixtures("hurried_loads", "hurried_searches")
@pytest.mark.parametrize("name", [name for name in NAMES if name != ENGINES])
def test_a_tutorial_holds_to_the_letter(name, tmp_path, quickstart_store):
    with one_server_a_bundle():
        follow(TUTORIALS / name, tmp_path, "" if name == ALONE else quickstart_store)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.needs("no gpu")
@pytest.mark.needs("package", "tensorrt_rtx")
def test_the_tutorial_on_engines_holds_where_there_is_no_gpu(tmp_path):
    follow(TUTORIALS / ENGINES, tmp_path)


def test_the_script_for_a_mac_writes_what_predictions_reads(tmp_path, monkeypatch):
    """Core ML is a stand-in: macOS alone has it."""
    steps = Tutorial.read(TUTORIALS / "edge.md").steps
    (script,) = (step[1] for step in steps if not isinstance(step, Command) and step[0] == "mac.py")
    images = np.arange(12, dtype=np.float32).reshape(3, 1, 2, 2)
    np.savez(tmp_path / "inputs.npz", ids=["a", "b", "c"], image=images)

    def predict(feed):
        assert feed["image"].shape == (1, 1, 2, 2)
        return {"logits": feed["image"].reshape(1, 4)}

    model = SimpleNamespace(predict=predict)
    models = SimpleNamespace(MLModel=lambda path: {"model.mlpackage": model}[path])
    monkeypatch.setitem(sys.modules, "coremltools", SimpleNamespace(models=models))
    monkeypatch.chdir(tmp_path)
    exec(script, {})
    with np.load(tmp_path / "mac.npz") as stored:
        assert stored["ids"].tolist() == ["a", "b", "c"]
        assert stored["logits"].tolist() == images.reshape(3, 4).tolist()


@pytest.mark.parametrize("name", NAMES)
def test_a_tutorial_has_steps_that_print_something(name):
    commands = Tutorial.read(TUTORIALS / name).commands
    assert any(each.line.startswith("optcli ") for each in commands)
    assert any(each.shown for each in commands)
    for shown in (each.shown for each in commands):
        assert missing_lines(shown, "\n".join(shown)) == []


@pytest.mark.parametrize("name", NAMES)
def test_a_tutorial_is_short_and_on_the_front_page(name):
    lines = (TUTORIALS / name).read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 200
    assert [line for line in lines if len(line) > 120 and not line.startswith("|")] == []
    assert f"tutorials/{name}" in (REPOSITORY / "docs" / "index.md").read_text(encoding="utf-8")
    assert f"tutorials/{name}" in (REPOSITORY / "mkdocs.yml").read_text(encoding="utf-8")


SCRIPT = "<!-- file: sub/a.py -->\n```python\nprint('one two')\nraise SystemExit(%d)\n```\n\n"
STEP = "    python sub/a.py    # exit %s\n\n```text\n%s\n```\n"


@pytest.mark.parametrize("codes", ["3", "0 or 3"])
def test_a_tutorial_that_holds_is_followed(codes, tmp_path):
    (tmp_path / "page.md").write_text(SCRIPT % 3 + STEP % (codes, "one ... two"))
    follow(tmp_path / "page.md", tmp_path)
    assert (tmp_path / "sub" / "a.py").is_file()


@pytest.mark.parametrize(
    ("code", "codes", "shown", "why"),
    [(3, "0", "one", "exit code 3"), (0, "0", "three", "the page shows"), (0, "0", "two one", "shows")],
)
def test_a_step_that_differs_fails(code, codes, shown, why, tmp_path):
    (tmp_path / "page.md").write_text(SCRIPT % code + STEP % (codes, shown))
    with pytest.raises(AssertionError, match=why):
        follow(tmp_path / "page.md", tmp_path)


def test_a_tutorial_in_a_checkout_finds_its_recipes(tmp_path):
    read = "    python -c \"print(open('recipes/README.md').readline())\"\n\n```text\n# Recipes\n```\n"
    (tmp_path / "page.md").write_text("Work in the root of a checkout of this repository.\n\n" + read)
    follow(tmp_path / "page.md", tmp_path)
    assert (tmp_path / "calibration_data" / "digits.npz").is_file()


def page(folder, text):
    path = folder / "page.md"
    path.write_text(text)
    return Tutorial.read(path)


def test_a_page_is_taken_apart_into_its_steps(tmp_path):
    tutorial = page(
        tmp_path,
        "Text.\n\n<!-- file: a.py -->\n```python\nif x:\n    print(1)\n```\n\n"
        "    python a.py\n    optcli build \\\n        a.yaml    # exit 0 or 5\n\n```text\ndone\n```\n",
    )
    assert tutorial.steps == [
        ("a.py", "if x:\n    print(1)\n"),
        Command("python a.py", frozenset({0})),
        Command("optcli build a.yaml", frozenset({0, 5}), ("done",)),
    ]
    assert not tutorial.in_checkout
    assert page(tmp_path, "Stay in the root of\na checkout of this repository.\n").in_checkout


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("    optcli passes\n\n```yaml\na: 1\n```\n", "a block of yaml is no step"),
        ("```text\ndone\n```\n", "no command prints"),
        ("<!-- file: a -->\n```text\na\n```\n\n```text\ndone\n```\n", "no command prints"),
        ("    optcli passes\n\n```text\na\n```\n\n```text\nb\n```\n", "prints two blocks"),
        ("    rm -r build\n", "rm -r build"),
        ("    optcli passes\n\n```text\ndone\n", "is not closed"),
    ],
)
def test_a_block_that_is_no_step_is_refused(text, why, tmp_path):
    with pytest.raises(AssertionError, match=why):
        page(tmp_path, text)


TABLE = """\
variant    runtime      size    p50 ms                top-1  change  verdict
onnx-int8  onnxruntime  68 kB   0.0419 [0.03, 0.05]   99 %     0.00  accept, 1.2x over onnx
pruned     torch        70 kB   n/a                   10 %   -89.20  reject: accuracy
"""


@pytest.mark.parametrize(
    "printed",
    [
        TABLE,
        TABLE.replace("0.0419 [0.03, 0.05]", "37 disturbed").replace(
            "accept, 1.2x over", "not compared"
        ),
        "more\n" + TABLE.replace("\n", "\nmore\n"),
    ],
)
def test_figures_and_what_is_said_of_speed_may_differ(printed):
    assert missing_lines(TABLE.splitlines(), printed) == []


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("onnx-int8", "onnx-fp16"),
        ("onnxruntime", "openvino"),
        ("reject: accuracy", "accept"),
        ("change", ""),
        ("torch", "torchscript"),
    ],
)
def test_a_word_that_is_not_printed_is_missing(old, new):
    assert missing_lines(TABLE.splitlines(), TABLE.replace(old, new)) != []


def test_lines_are_looked_for_in_their_order():
    assert missing_lines(["b", "...", "a"], "a\nb\n") == ["a"]
    assert missing_lines(["a", "...", "b"], "a\nx\nb\n") == []


def test_a_line_of_figures_alone_would_hold_anywhere():
    with pytest.raises(AssertionError, match="nothing but figures"):
        missing_lines(["1.00x  99.33 %"], "anything")
