"""What the pages show: recipes load, commands parse, Python compiles, and reads what a build wrote."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import get_args

import pytest
from commands import hurried, optcli_here, optcli_process
from pages import REPOSITORY
from ruamel.yaml import YAML
from shown import Block, blocks, commands, fitting
from tiny_project import DATA
from verbs import VERBS, options, parse

from optcli import passes, recipe
from optcli.accuracy import bounds
from optcli.errors import RecipeError
from optcli.files import registry
from optcli.results import statistics
from optcli.results.flags import FlagKind
from optcli.settings.latency import LatencySettings

DOCS = REPOSITORY / "docs"
PAGES = [
    REPOSITORY / "CONTRIBUTING.md",
    *(page for page in sorted(DOCS.rglob("*.md")) if page.parent.name != "reference"),
]
HOW_TO = DOCS / "how-to"
# `test_pages.py` and `test_tutorials.py` follow them: their recipes name what the reader is to write.
FOLLOWED = {
    *(DOCS / "add-a-pass.md", DOCS / "add-a-runner.md"),
    *(DOCS / "tutorials").glob("*.md"),
}
PROGRAMS = {
    *("optcli", "make", "git", "pip", "python", "rsync", "taskset"),
    *("cd", "echo", "eval", "export", "rm", "source"),
}
STARTERS = {"taskset"}  # what they start stands behind their own options
TARGETS = re.findall(
    r"^([a-z-]+):", (REPOSITORY / "Makefile").read_text(encoding="utf-8"), re.MULTILINE
)
# A recipe on a page may lack the reader's own files, and nothing else.
_MISSING = re.compile(r"no such (file|folder)|there is no file")


def named(page: Path) -> str:
    return page.relative_to(REPOSITORY).as_posix()


def of_language(*languages: str) -> list[tuple[Path, Block]]:
    every = [(page, block) for page in PAGES for block in blocks(page)]
    return [(page, block) for page, block in every if block.language in languages]


def yaml(block: Block) -> dict[str, object]:
    return dict(YAML(typ="safe").load(block.text))


RECIPES = [(page, block) for page, block in of_language("yaml") if block.text.startswith("version: 1")]
WORKFLOWS = [(page, block) for page, block in of_language("yaml") if block.text.startswith("jobs:")]
PARTS = [each for each in of_language("yaml") if each not in RECIPES and each not in WORKFLOWS]


def test_the_pages_show_something_of_each_kind():
    assert len(RECIPES) > 3
    assert len(PARTS) > 5
    assert len(of_language("python")) > 3
    assert sum(len(list(commands(page))) for page in PAGES) > 40


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_every_command_is_one(page):
    for words in commands(page):
        program = Path(words[0]).name
        if words[0] in STARTERS and "optcli" in words:
            words = words[words.index("optcli") :]
            program = "optcli"
        assert program in PROGRAMS or words[0].startswith(".venv/bin/"), words
        if program == "optcli":
            parse(words)
        elif program == "make":
            goals = [word for word in words[1:] if not word.startswith("-") and "=" not in word]
            assert set(goals) <= set(TARGETS), words


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_every_verb_and_option_in_a_sentence_is_one(page):
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for line in re.findall(r"`optcli ([a-z-][^`]*)`", text):
        words = line.split()
        name = next((each for each in (" ".join(words[:2]), words[0]) if each in VERBS), None)
        assert name or words[0].startswith("-"), line
        known = options(VERBS[name]) if name else {"--help", "--version"}
        assert {word.partition("=")[0] for word in words if word.startswith("-")} <= known, line


def files(page: Path) -> dict[str, str]:
    """The files that a page shows, by name."""
    return {block.name: block.text for block in blocks(page) if block.name}


def write_files(room: Path, into: Path) -> None:
    """Write the files that the pages in a folder show; these pages may name each other's."""
    for page in sorted(room.glob("*.md")):
        for name, text in files(page).items():
            path = into / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")


def wrong_with(path: Path, overrides: Sequence[str] = ()) -> list[str]:
    """What is wrong with a recipe, but for the reader's own files."""
    try:
        assert recipe.load(path, overrides).variants
    except RecipeError as error:
        return [str(each) for each in error.problems if not _MISSING.search(each.message)]
    return []


@pytest.mark.parametrize(
    ("page", "block"),
    [each for each in RECIPES if each[0] not in FOLLOWED],
    ids=lambda each: getattr(each, "name", None),
)
def test_a_whole_recipe_loads(page, block, tmp_path):
    write_files(page.parent, tmp_path)
    path = tmp_path / "page.yaml"
    path.write_text(block.text, encoding="utf-8")
    assert wrong_with(path) == []


def test_values_that_commands_set_fit_the_recipe_that_they_name(tmp_path):
    write_files(HOW_TO, tmp_path)
    known = [words for page in HOW_TO.glob("*.md") for words in commands(page)]
    builds = [words for words in known if {"build", "--set"} <= set(words)]
    tried = 0
    for words in builds:
        path = tmp_path / words[words.index("build") + 1]
        if path.is_file():
            overrides = [after for word, after in pairwise(words) if word == "--set"]
            assert wrong_with(path, overrides) == [], words
            tried += 1
    assert tried >= 2


@pytest.mark.slow
@pytest.mark.parametrize(("page", "block"), PARTS, ids=lambda each: getattr(each, "name", None))
def test_a_part_of_a_recipe_fits_the_schema(page, block):
    part = yaml(block)
    if part.keys() <= set(registry.names(passes.__name__)):
        part = {"variants": {"shown": [part]}}
    fitting(recipe.schema).validate({"version": 1, "name": "shown", "extends": "base.yaml", **part})


@pytest.mark.parametrize(
    ("page", "block"), of_language("python"), ids=lambda each: getattr(each, "name", None)
)
def test_python_compiles(page, block):
    compile(block.text, named(page), "exec")


def rows_of(page: Path) -> dict[str, list[str]]:
    """The rows of all tables of a page, by what stands in the first column."""
    lines = [line.strip("|").split("|") for line in page.read_text().splitlines() if line[:1] == "|"]
    return {first.strip(): [cell.strip() for cell in rest] for first, *rest in lines}


def test_the_modes_are_those_of_the_settings():
    rows = rows_of(DOCS / "explanation" / "measuring.md")
    modes = [LatencySettings.model_validate({"mode": mode}) for mode in ("quick", "table", "gate")]
    for row, setting in (
        ("launches", "launches"),
        ("rounds in a launch", "rounds"),
        ("time cap of the timed calls", "max_seconds"),
    ):
        said = [re.match(r"\d+", cell) for cell in rows[row]]
        assert [each and int(each[0]) for each in said] == [getattr(mode, setting) for mode in modes]
    assert rows["warm-up"][0] == f"{modes[0].warmup} calls"
    assert [cell.split()[0] for cell in rows["calls in a round"][:2]] == [
        str(mode.calls) for mode in modes[:2]
    ]


def test_the_kinds_of_flags_are_those_of_the_code():
    rows = rows_of(DOCS / "explanation" / "measuring.md")
    kinds = [row.strip("`") for row in rows if re.fullmatch(r"`[a-z]+(-[a-z]+)*`", row)]
    assert len(kinds) > 5
    assert set(kinds) <= set(get_args(FlagKind))


def test_the_calls_that_percentiles_need_are_those_of_the_code():
    text = (DOCS / "explanation" / "measuring.md").read_text().replace("\n", " ")
    said = dict(re.findall(r"p(\d\d) (?:needs )?(\d+)[,. ]", text))
    assert {int(q): int(count) for q, count in said.items()} == {
        q: statistics.needed(q / 100) for q in (50, 90, 95, 99)
    }


def test_the_samples_that_bars_need_are_those_of_the_code():
    rows = rows_of(DOCS / "explanation" / "verdicts.md")
    needed = {
        row: int(cells[0].replace(",", ""))
        for row, cells in rows.items()
        if re.match(r"[\d.]+ point", row)
    }
    assert len(needed) == 5
    for row, samples in needed.items():
        assert bounds.needed(float(row.split()[0]) / 100, 1.0, 0.05) == samples


def test_every_pass_whose_result_depends_on_the_machine_is_named_beside_the_shared_store():
    rows = rows_of(HOW_TO / "share-the-store.md")
    told = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    names = registry.names(passes.__name__)
    assert told == {name for name in names if passes.find(name).device_bound}


def test_the_glossary_is_in_order_and_says_each_word_once():
    lines = (DOCS / "glossary.md").read_text().splitlines()
    terms = [line.split("|")[1].strip() for line in lines if line.startswith("| ")]
    assert terms[2:] == sorted(set(terms[2:]), key=str.lower)


def run(script: str, folder: Path) -> list[str]:
    """The lines that a script prints."""
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.long
@pytest.mark.slow
def test_the_page_about_reports_reads_what_a_build_wrote(project):
    page, folder = HOW_TO / "report-in-pandas.md", project.folder
    variants = "  plain: []\n  openvino: {passes: [], runner: openvino}\n"
    text = project.recipe(variants, data=DATA).read_text().replace("name: tiny", "name: flowers")
    (folder / "flowers.yaml").write_text(text)
    built = optcli_here(*hurried(["build", "flowers.yaml"]), folder=folder, OPTCLI_STORE="")
    assert built.code in (0, 5), built.err
    for name in ("before.json", "after.json"):
        shutil.copyfile(folder / "artifacts" / "flowers" / "report.json", folder / name)
    tables = [words for words in commands(page) if words[:2] == ["optcli", "compare"]]
    assert len(tables) == 2
    for words in tables:
        optcli_here(*words[1:], folder=folder)
    said = {name: run(script, folder) for name, script in files(page).items()}
    first, *rows = said["report.py"]
    assert first.startswith("serve ")
    assert [line.split()[:3] for line in rows] == [["plain", "1", "host"], ["openvino", "1", "host"]]
    fit = [line.split()[0] for line in rows if line.endswith("True")]
    assert [line.split()[0] for line in said["table.py"]] == fit
    assert [line.split()[:2] for line in said["samples.py"]] == [["plain", "1"], ["openvino", "1"]]
    heads = ",".join(
        (folder / name).read_text().partition("\n")[0] for name in ("flowers.csv", "changes.csv")
    )
    columns = [line for line in page.read_text(encoding="utf-8").splitlines() if line.startswith("| `")]
    names = {name for line in columns for name in re.findall(r"`([a-z]\w+)`", line)}
    assert len(names) > 20
    assert names <= set(heads.split(","))


def test_a_workflow_gives_the_action_what_it_takes():
    taken = YAML(typ="safe").load(HOW_TO.parents[1] / "action.yml")["inputs"]
    jobs = [job for _, block in WORKFLOWS for job in yaml(block)["jobs"].values()]
    given = [step["with"] for job in jobs for step in job["steps"] if "optcli" in step["uses"]]
    assert given
    assert all(each.keys() <= taken.keys() for each in given)


@pytest.mark.slow
def test_samples_of_your_own_code_feed_a_build(project):
    import numpy as np

    write_files(HOW_TO, project.folder)
    (project.folder / "plants").mkdir()
    pixels = np.random.default_rng(0).integers(0, 256, (8, 4, 4, 3), dtype=np.uint8)
    for number, image in enumerate(pixels):
        np.save(project.folder / "plants" / f"{('daisy', 'rose')[number % 2]}-{number}.npy", image)
    parts = [block.text for page, block in PARTS if page == HOW_TO / "own-data.md"]
    (part,) = [text for text in parts if "python:" in text]
    project.recipe("  plain: []\n", data=part)
    plain = project.build().variants["plain"]
    assert plain.accuracy.samples == len(pixels)


@pytest.mark.slow
def test_the_network_of_the_page_takes_the_inputs_of_its_recipe(tmp_path):
    import torch

    write_files(HOW_TO, tmp_path)
    checked = recipe.load(tmp_path / "net.yaml")
    code: dict[str, object] = {}
    exec((tmp_path / "net.py").read_text(), code)
    network = code["Net"](**checked.model.arguments)
    outputs = network(*(torch.rand(spec.concrete(2)) for spec in checked.inputs))
    assert outputs.shape == (2, 10)


@pytest.mark.slow
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_gets_its_completion(shell, tmp_path):
    assert f"_OPTCLI_COMPLETE={shell}_source optcli" in (HOW_TO / "shell-completion.md").read_text()
    said = optcli_process(folder=tmp_path, _OPTCLI_COMPLETE=f"{shell}_source")
    assert said.code == 0, said.err
    assert "_optcli_completion" in said.out
