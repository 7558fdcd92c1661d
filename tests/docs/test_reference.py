"""docs/reference/ is what the code says today, and the site builds without a warning."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from types import ModuleType

import pytest
from pages import REPOSITORY
from ruamel.yaml import YAML
from shown import fitting

from optcli import environment, passes, recipe, runners
from optcli.accuracy import metrics
from optcli.errors import ExitCode
from optcli.files import registry
from optcli.serving import planning
from optcli.settings.accuracy import AccuracySettings

DOCS = REPOSITORY / "docs"


def script(name: str) -> ModuleType:
    """A script of docs/, which imports those beside it."""
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(DOCS))
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(DOCS))
    return module


GENERATOR = script("generate")
PAGES = GENERATOR.pages()
EXAMPLES = {
    (page, name): text for page, texts in GENERATOR.EXAMPLES.items() for name, text in texts.items()
}


@pytest.mark.parametrize("name", PAGES)
def test_the_page_is_what_the_code_says(name):
    written = (DOCS / "reference" / name).read_text(encoding="utf-8")
    assert written == PAGES[name], "run `make docs` and commit docs/reference/"


def test_no_page_is_left_over():
    assert {path.name for path in (DOCS / "reference").iterdir()} == PAGES.keys()


@pytest.mark.parametrize("name", ["recipe.md", "passes.md", "runners.md", "metrics.md"])
def test_every_key_has_a_meaning(name):
    rows = [line for line in PAGES[name].splitlines() if line.startswith("| `")]
    assert len(rows) > 2
    assert [row for row in rows if row.split(" | ")[-1].strip(" |") == ""] == []


def sections(page: str) -> set[str]:
    """The second headings of a page of the reference."""
    return set(re.findall(r"^## (.*)$", PAGES[page], re.MULTILINE))


@pytest.mark.parametrize("page", ["recipe", "plan-file", "passes", "runners", "metrics"])
def test_every_section_has_an_example(page):
    told = sections(f"{page}.md") - {"Presets", f"Options of several {page}", "python:FILE.py:CALLABLE"}
    assert {name for kind, name in EXAMPLES if kind == page} == told


def test_every_pass_and_runner_has_a_section():
    assert set(registry.names(passes.__name__)) < sections("passes.md")
    assert set(runners.names()) < sections("runners.md")


@pytest.mark.slow
@pytest.mark.parametrize(("page", "name"), EXAMPLES)
def test_an_example_is_right(page, name):
    part = YAML(typ="safe").load(EXAMPLES[page, name])
    assert part
    if page == "plan-file":
        fitting(planning.file_schema).validate({"version": 1, **part})
    else:
        whole = {"version": 1, "name": "shown", "extends": "base.yaml", **part}
        fitting(recipe.schema).validate(whole)
    if page == "metrics":
        metrics.require_metric(AccuracySettings.model_validate(part["accuracy"]))
    if page in ("passes", "runners", "metrics"):
        assert name in EXAMPLES[page, name]


# A tutorial stands by itself, and pages on style and glossary quote what others say.
ALONE = {"docs/style.md", "docs/glossary.md"}
# Fewer words are a term, a type or a heading.
WORDS = 6


@pytest.mark.slow
def test_no_sentence_stands_on_two_pages_of_the_docs_or_twice_on_one(tmp_path):
    texts = script("texts")
    told: dict[str, list[str]] = defaultdict(list)
    for page in [*texts.pages(), *sorted((DOCS / "reference").glob("*.md"))]:
        name = page.relative_to(REPOSITORY).as_posix()
        if name in ALONE or page.parent.name == "tutorials":
            continue
        for _, sentence in texts.sentences(page):
            # Links and code are names, and what has bounds is a type: neither is a sentence.
            said = re.sub(r"`[^`]*`|\[[^]]*\]\([^)]*\)", "", sentence)
            if len(re.findall(r"[A-Za-z]{2,}", said)) >= WORDS and "≥" not in said:
                told[sentence.strip(" .;:")].append(name)
    assert len(told) > 2000
    assert {sentence: names for sentence, names in told.items() if len(names) > 1} == {}


@pytest.mark.slow
def test_every_variable_that_the_code_reads_is_documented():
    files = (REPOSITORY / "optcli").rglob("*.py")
    read = {name for path in files for name in re.findall(r"\bOPTCLI_[A-Z_]+", path.read_text())}
    assert read == environment.VARIABLES.keys()


def test_every_exit_code_has_a_meaning():
    assert len({code.meaning for code in ExitCode}) == len(ExitCode)


@pytest.mark.long
@pytest.mark.slow
def test_the_site_builds_without_a_warning_and_asks_nobody_else(tmp_path):
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")],
        cwd=REPOSITORY,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    pages = sorted((tmp_path / "site").rglob("*.html"))
    assert len(pages) > len(PAGES)
    fetched = re.compile(r"<(?:script|img|link|iframe)\b[^>]*(?:src|href)=\"?(https?://[^\s\">]+)")
    for page in pages:
        assert fetched.findall(page.read_text(encoding="utf-8")) == [], page
    unknown = [page for page in Path(DOCS).rglob("*.md") if not _on_site(page, tmp_path / "site")]
    assert unknown == []


def _on_site(page: Path, site: Path) -> bool:
    return (site / page.relative_to(DOCS)).with_suffix(".html").is_file()
