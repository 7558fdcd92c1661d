"""User code: what belongs to a reference, its digest, its copy, and how loading it fails."""

from __future__ import annotations

import gc
import shutil
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from textwrap import dedent

import pytest

from optcli.errors import InputError, UsageError
from optcli.files.digest import FileDigests
from optcli.settings import user_code
from optcli.settings.user_imports import imported_modules


@pytest.fixture(autouse=True)
def _as_it_was(monkeypatch):
    """What a test imports and puts on sys.path goes with it."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        del sys.modules[name]


def write(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dedent(text))
    return folder


@pytest.fixture
def project(tmp_path):
    """A package with relative imports, an import inside a function, and files nobody imports."""
    return write(
        tmp_path / "project",
        {
            "nets/__init__.py": "from . import blocks\n",
            "nets/digits.py": """
                import json
                import numpy
                from .blocks import width
                from .parts import conv
                from nets.deep.tail import tail

                def make():
                    from . import late
                    return width + conv.size + tail + late.value
                """,
            "nets/blocks.py": "width = 1\n",
            "nets/parts/__init__.py": "",
            "nets/parts/conv.py": "size = 10\n",
            "nets/deep/tail.py": "tail = 100\n",
            "nets/late.py": "value = 1000\n",
            "nets/unrelated.py": "import nothing_like_it\n",
            "blocks.py": "width = 'the wrong one'\n",
        },
    )


REFERENCE = "nets/digits.py:make"
OWN = {
    "nets/__init__.py", "nets/blocks.py", "nets/digits.py", "nets/deep/tail.py", "nets/late.py",
    "nets/parts/__init__.py", "nets/parts/conv.py",
}  # fmt: skip


def digest(folder: Path, reference: str = REFERENCE) -> str:
    return user_code.digest(reference, folder, FileDigests())


@pytest.mark.parametrize(
    ("text", "place", "name"),
    [
        ("models/digits.py:DigitsNet", "models/digits.py", "DigitsNet"),
        ("package.module:make", "package.module", "make"),
        ("./mine.py:Outer.make", "./mine.py", "Outer.make"),
        ("C:/nets/mine.py:Net", "C:/nets/mine.py", "Net"),
    ],
)
def test_a_reference_has_a_place_and_a_name(text, place, name):
    assert user_code.parse(text) == user_code.Reference(place, name)


@pytest.mark.parametrize(
    "text", ["", "Net", "a.py", "a.py:", ":Net", "a.py:2x", "dir/net:Net", "a..b:Net"]
)
def test_what_is_no_reference_is_refused_with_an_example(text):
    with pytest.raises(UsageError) as error:
        user_code.parse(text)
    assert "models/digits.py:DigitsNet" in error.value.hint


def test_the_closure_is_every_local_module_and_no_other(project):
    closure = user_code.closure(REFERENCE, project)
    assert {path.relative_to(closure.root).as_posix() for path in closure.files} == OWN
    assert closure.root == project
    assert closure.distributions == ("numpy",)


def test_a_module_reference_finds_the_same_files(project):
    assert (
        user_code.closure("nets.digits:make", project).files
        == user_code.closure(REFERENCE, project).files
    )


@pytest.mark.parametrize("name", sorted(OWN))
def test_one_line_in_any_of_its_files_changes_the_digest(project, name):
    before = digest(project)
    with (project / name).open("a") as file:
        file.write("\nchanged = True\n")
    assert digest(project) != before


def test_an_unrelated_file_and_another_place_do_not_change_the_digest(project, tmp_path):
    before = digest(project)
    (project / "nets/unrelated.py").write_text("x = 1\n")
    (project / "blocks.py").write_text("width = 2\n")
    assert digest(project) == before
    shutil.move(project, tmp_path / "elsewhere")
    assert digest(tmp_path / "elsewhere") == before


def test_the_name_and_the_version_of_a_distribution_change_the_digest(project, monkeypatch):
    before = digest(project)
    assert digest(project, "nets/digits.py:tail") != before
    monkeypatch.setattr(user_code, "_version", lambda name: "0.0.1")
    assert digest(project) != before


def test_optcli_beside_a_recipe_is_no_part_of_the_users_code(tmp_path):
    write(tmp_path, {"optcli/__init__.py": "", "mine.py": "from optcli.passes import Pass\n"})
    closure = user_code.closure("mine.py:Pass", tmp_path)
    assert [path.name for path in closure.files] == ["mine.py"]
    assert closure.distributions == ("optcli",)


def test_a_copy_loads_and_no_longer_follows_the_original(project, tmp_path):
    write(project, {"nets/__pycache__/digits.cpython-311.pyc": "of an earlier run"})
    reference = user_code.copy(REFERENCE, project, tmp_path / "code")
    shutil.rmtree(project)
    assert reference == REFERENCE
    assert not list((tmp_path / "code").rglob("__pycache__"))
    assert user_code.load(reference, tmp_path / "code")() == 1111


def test_two_versions_of_a_module_load_one_after_the_other(tmp_path):
    for name, value in (("old", 1), ("new", 2)):
        net = "from layers import width\n\ndef make():\n    return width\n"
        write(tmp_path / name, {"net.py": net, "layers.py": f"width = {value}\n"})
    made = [user_code.load("net.py:make", tmp_path / name) for name in ("old", "new", "old")]
    assert [make() for make in made] == [1, 2, 1]


def test_stale_bytecode_is_not_believed(tmp_path):
    import os
    import py_compile

    write(tmp_path, {"net.py": "make = 1\n"})
    file = tmp_path / "net.py"
    py_compile.compile(str(file))
    stat = file.stat()
    file.write_text("make = 2\n")
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert user_code.load("net.py:make", tmp_path) == 2


def test_an_installed_module_is_named_not_followed(tmp_path):
    closure = user_code.closure("pydantic.main:BaseModel", tmp_path)
    assert (closure.files, closure.distributions) == ((), ("pydantic",))
    assert (
        user_code.copy("pydantic.main:BaseModel", tmp_path, tmp_path / "code")
        == "pydantic.main:BaseModel"
    )
    assert user_code.load("pydantic.main:BaseModel", tmp_path).__name__ == "BaseModel"


@pytest.mark.parametrize(
    ("text", "line", "message", "hint"),
    [
        ("x = 1\ndef make(:\n", 2, "syntax error", "def make(:"),
        (
            "x = 1\n\nimport no_such_package\n",
            3,
            "'no_such_package'",
            "install it where",
        ),
        ("from . import other\n", 1, "relative import", "__init__.py"),
        ("x = 1\nraise ValueError('bad table')\n", 2, "ValueError: bad table", "import net"),
        ("import sys\nsys.exit(3)\n", 2, "ends the program", "__main__"),
    ],
)
def test_an_import_that_fails_names_the_line(tmp_path, text, line, message, hint):
    write(tmp_path, {"net.py": text})
    with pytest.raises(InputError) as error:
        user_code.load("net.py:make", tmp_path)
    assert error.value.place == f"{tmp_path / 'net.py'}:{line}"
    assert message in error.value.message
    assert hint in error.value.hint


def test_the_line_is_that_of_the_imported_file(tmp_path):
    write(tmp_path, {"net.py": "import layers\n", "layers.py": "x = 1\n\n1 / 0\n"})
    with pytest.raises(InputError) as error:
        user_code.load("net.py:make", tmp_path)
    assert error.value.place == f"{tmp_path / 'layers.py'}:3"


def test_a_missing_name_is_seen_before_anything_runs(tmp_path):
    write(tmp_path, {"net.py": "raise SystemExit\nclass DigitsNet: ...\n"})
    message, hint = user_code.problem("net.py:DigitNet", tmp_path)
    assert "defines no 'DigitNet'" in message
    assert hint == "did you mean 'DigitsNet'?"
    assert user_code.problem("net.py:DigitsNet", tmp_path) is None


def test_a_missing_name_is_an_error_when_loaded(tmp_path):
    write(tmp_path, {"net.py": "def make(): ...\n"})
    with pytest.raises(InputError, match="no 'mak'") as error:
        user_code.load("net.py:mak", tmp_path)
    assert error.value.hint == "did you mean 'make'?"


@pytest.mark.parametrize(
    "text",
    ["try:\n    make = 1\nexcept E: ...\n", "from os.path import *\n", "def __getattr__(name): ...\n"],
)
def test_a_name_that_may_be_there_is_not_called_missing(tmp_path, text):
    write(tmp_path, {"net.py": text})
    assert user_code.problem("net.py:make", tmp_path) is None


def test_a_missing_file_or_module_says_so(tmp_path):
    for reference in ("net.py:make", "no_such_module:make"):
        message, hint = user_code.problem(reference, tmp_path)
        assert "there is no" in message or "no such file" in message
        assert hint


@pytest.fixture
def scoring(tmp_path, monkeypatch):
    """A metric that imports what lies in a `src/` on sys.path."""
    write(
        tmp_path,
        {
            "recipes/metric.py": "import json\nfrom scoringlib import ok\nfrom oneword import word\n",
            "src/scoringlib/__init__.py": "from scoringlib.rules import ok\nimport numpy\n",
            "src/scoringlib/rules.py": """
                from . import limits
                import no_such_module_at_all

                def ok(outputs, target, meta):
                    from spaced.inner import part
                    return True
                """,
            "src/scoringlib/limits.py": "least = 1\n",
            "src/scoringlib/unrelated.py": "this is no Python\n",
            "src/spaced/inner.py": "part = 1\n",
            "src/oneword.py": "word = 1\n",
        },
    )
    monkeypatch.syspath_prepend(str(tmp_path / "src"))
    return tmp_path


def test_code_on_the_path_belongs_to_the_closure_and_is_not_copied(scoring):
    closure = user_code.closure("metric.py:ok", scoring / "recipes")
    assert {name: path.relative_to(scoring / "src").as_posix() for name, path in closure.outside} == {
        "oneword": "oneword.py",
        "scoringlib": "scoringlib/__init__.py",
        "scoringlib.limits": "scoringlib/limits.py",
        "scoringlib.rules": "scoringlib/rules.py",
        "spaced.inner": "spaced/inner.py",
    }
    assert [path.name for path in closure.files] == ["metric.py"]
    assert {"numpy", "scoringlib", "no_such_module_at_all"} <= set(closure.distributions)
    assert not {"scoringlib", "oneword", "spaced"} & set(sys.modules), "nothing is imported"
    user_code.copy("metric.py:ok", scoring / "recipes", scoring / "code")
    assert [path.name for path in (scoring / "code").rglob("*.py")] == ["metric.py"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "counts"),
    [
        ("oneword.py", True),
        ("scoringlib/__init__.py", True),
        ("scoringlib/limits.py", True),
        ("spaced/inner.py", True),
        ("scoringlib/unrelated.py", False),
    ],
)
def test_code_on_the_path_changes_the_digest(scoring, name, counts):
    before = digest(scoring / "recipes", "metric.py:ok")
    with (scoring / "src" / name).open("a") as file:
        file.write("\nchanged = True\n")
    assert (digest(scoring / "recipes", "metric.py:ok") != before) is counts


@pytest.mark.slow
def test_code_on_the_path_has_one_digest_wherever_it_lies(scoring, monkeypatch):
    before = digest(scoring / "recipes", "metric.py:ok")
    shutil.move(scoring / "src", scoring / "other")
    assert digest(scoring / "recipes", "metric.py:ok") != before, "it is gone"
    monkeypatch.syspath_prepend(str(scoring / "other"))
    assert digest(scoring / "recipes", "metric.py:ok") == before


def test_an_editable_installation_is_followed(tmp_path, monkeypatch):
    """As setuptools makes it: a finder maps the name to a folder that may be called otherwise."""
    from importlib.machinery import ModuleSpec
    from importlib.util import spec_from_file_location

    write(tmp_path, {"metric.py": "from mapped.rules import ok\n"})
    write(tmp_path / "lib", {"__init__.py": "", "rules.py": "ok = 1\n"})

    class Finder:
        @staticmethod
        def find_spec(name: str, path=None, target=None) -> ModuleSpec | None:
            if name != "mapped":
                return None
            folder = tmp_path / "lib"
            return spec_from_file_location(
                name, folder / "__init__.py", submodule_search_locations=[str(folder)]
            )

    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, Finder])
    closure = user_code.closure("metric.py:ok", tmp_path)
    assert dict(closure.outside) == {
        "mapped": tmp_path / "lib/__init__.py",
        "mapped.rules": tmp_path / "lib/rules.py",
    }


@pytest.mark.parametrize("place", ["site-packages", "dist-packages"])
def test_what_is_installed_is_known_by_its_version(tmp_path, monkeypatch, place):
    write(tmp_path, {"metric.py": "from scoringlib import ok\n", f"{place}/scoringlib.py": "ok = 1\n"})
    monkeypatch.syspath_prepend(str(tmp_path / place))
    closure = user_code.closure("metric.py:ok", tmp_path)
    assert (closure.outside, closure.distributions) == ((), ("scoringlib",))


@pytest.mark.long
@pytest.mark.slow
def test_many_threads_read_what_files_import_at_once():
    """As the steps of a build do on a cluster; Python lets threads take turns while it parses."""

    def take_turns(*_: object) -> None:
        time.sleep(0.0001)

    file, threshold = Path(user_code.__file__), gc.get_threshold()
    with ThreadPoolExecutor(4) as threads:
        gc.callbacks.append(take_turns)
        gc.set_threshold(50)
        try:
            found = list(
                threads.map(lambda _: imported_modules(file, "optcli.settings.user_code"), range(60))
            )
        finally:
            gc.callbacks.remove(take_turns)
            gc.set_threshold(*threshold)
    assert all(each == found[0] for each in found)
    assert "optcli.errors" in found[0]


@pytest.mark.parametrize("reference", ["nets/net.py:Net", "./nets/net.py:Net"])
@pytest.mark.parametrize("recipes", ["", "recipes/", "recipes/deep/"])
def test_folders_above_a_file_are_looked_in_up_to_the_projects(tmp_path, reference, recipes):
    """`nets/net.py` imports from `common/` beside `nets/`, as a program run in the project does."""
    write(
        tmp_path,
        {
            "pyproject.toml": "",
            "nets/net.py": "from blocks import one\nfrom common.parts import two\n"
            "from lib import four\nimport tests_of_it\nNet = [one, two, four]\n",
            "nets/blocks.py": "one = 1\n",
            "common/parts.py": "from common.deep.more import two\n",
            "common/deep/__init__.py": "",
            "common/deep/more.py": "two = 2\n",
            "lib.py": "four = 4\n",
            "blocks.py": "one = 'the wrong one'\n",
            "tests_of_it/__init__.py": "",
            f"{recipes}recipe.yaml": "",
        },
    )
    folder = tmp_path / recipes
    reference = f"{'../' * recipes.count('/')}{reference}"
    closure = user_code.closure(reference, folder)
    assert {file.relative_to(tmp_path).as_posix() for file in closure.files} == {
        *("nets/net.py", "nets/blocks.py", "common/parts.py", "common/deep/__init__.py"),
        *("common/deep/more.py", "lib.py", "tests_of_it/__init__.py"),
    }
    assert user_code.load(reference, folder) == [1, 2, 4]
    before = user_code.digest(reference, folder, FileDigests())
    copied = user_code.copy(reference, folder, tmp_path / "copied")
    (tmp_path / "common/deep/more.py").write_text("two = 'other'\n")
    assert user_code.digest(reference, folder, FileDigests()) != before
    shutil.rmtree(tmp_path / "nets")
    assert user_code.load(copied, tmp_path / "copied") == [1, 2, 4]


def test_what_is_installed_is_not_looked_for_above(tmp_path):
    write(
        tmp_path,
        {
            "nets/net.py": "import numpy\nimport json\nNet = numpy.ones\n",
            "numpy/__init__.py": "",
            "json.py": "",
        },
    )
    closure = user_code.closure("nets/net.py:Net", tmp_path)
    assert [path.name for path in closure.files] == ["net.py"]
    assert closure.distributions == ("numpy",)


def test_what_is_missing_is_never_to_be_fetched_by_the_name_of_a_folder(tmp_path):
    write(tmp_path, {"nets/net.py": "from common.blocks import Block\n"})
    with pytest.raises(InputError, match="imports 'common'") as error:
        user_code.load("nets/net.py:Net", tmp_path)
    assert "pip install" not in error.value.hint
    assert "PYTHONPATH" in error.value.hint
