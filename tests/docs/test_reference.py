"""docs/reference/ is what the code says today, and the site builds without a warning."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from pages import REPOSITORY

from optcli import environment
from optcli.errors import ExitCode

DOCS = REPOSITORY / "docs"


def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate", DOCS / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


PAGES = generator().pages()


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


def test_every_variable_that_the_code_reads_is_documented():
    files = (REPOSITORY / "optcli").rglob("*.py")
    read = {name for path in files for name in re.findall(r"\bOPTCLI_[A-Z_]+", path.read_text())}
    assert read == environment.VARIABLES.keys()


def test_every_exit_code_has_a_meaning():
    assert len({code.meaning for code in ExitCode}) == len(ExitCode)


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
