"""The house rules, held: who may import whom, what loads when, how long and how named files are."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator, Sequence
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[1] / "optcli"

GROUND = {
    "errors", "files", "artifact", "sample", "observer", "environment", "settings", "results",
    "workers",
}  # fmt: skip
MODELS = {"models/formats", "models/onnx_graphs", "models/engines"}
# What builds: all that a recipe's variants are made, measured and judged with.
BUILD = {
    *MODELS, "models/sources", "passes", "runners", "data", "outputs", "recipe", "store",
    "measure/latency", "accuracy",
}  # fmt: skip

# Room: the rooms it may import, besides itself and the ground. docs/architecture.md says why. A folder
# within a room has a line of its own where other rooms read it by itself.
MAY_IMPORT: dict[str, set[str]] = {
    **{room: set() for room in GROUND},
    "store": set(),
    "report": set(),
    "models": set(),
    "models/engines": set(),
    "models/onnx_graphs": set(),
    "models/formats": {"models/engines"},
    "models/sources": MODELS,
    **dict.fromkeys(("passes", "runners", "data"), MODELS),
    "outputs": {"models/formats", "models/onnx_graphs"},
    "accuracy": {"runners", "data", "outputs", "models/formats", "models/onnx_graphs"},
    "measure": set(),
    "measure/queueing": set(),
    "measure/latency": {"runners", "data", "measure/queueing"},
    "measure/roofline": {"models/formats"},
    "measure/profiling": {"runners", "data", "accuracy", "measure/latency"},
    "recipe": {"passes", "runners", "models/sources", "models/formats", "data"},
    "scaffold/inspection": {*MODELS, "models/sources", "outputs", "recipe"},
    "scaffold/doctor": {"models/formats", "models/engines", "store"},
    "scaffold": {
        *MODELS, "models/sources", "passes", "data", "outputs", "recipe", "scaffold/inspection",
    },
    "pipeline": {
        *BUILD, "report", "measure/queueing", "measure/roofline", "measure/profiling",
        "scaffold/inspection", "pipeline/model_files",
    },
    "pipeline/model_files": {
        *BUILD, "pipeline", "measure/profiling", "scaffold", "scaffold/inspection",
    },
    "pipeline/verification": {*BUILD, "pipeline", "pipeline/model_files"},
    "gate/baselines": {"store", "models/formats", "runners"},
    "gate": {
        *BUILD, "pipeline", "report", "measure/profiling", "scaffold/inspection", "gate/baselines",
    },
    "tuning": {*BUILD, "pipeline", "report", "measure/queueing", "measure/profiling"},
    "serving/prediction": {*BUILD, "pipeline", "pipeline/model_files", "scaffold/inspection"},
    "serving/inference": {
        *BUILD, "pipeline", "pipeline/model_files", "scaffold/inspection", "serving/prediction",
    },
    "serving": {
        *BUILD, "pipeline", "pipeline/model_files", "report", "measure/queueing", "scaffold/inspection",
        "serving/prediction",
    },
    "cli": {
        *BUILD, "pipeline", "pipeline/model_files", "pipeline/verification", "report",
        "measure/queueing", "measure/roofline", "measure/profiling", "scaffold", "scaffold/inspection",
        "scaffold/doctor", "gate", "gate/baselines", "tuning", "serving", "serving/inference",
    },
    "__init__": {"pipeline", "serving", "tuning"},
    "__main__": {"cli"},
}  # fmt: skip
# What people count when they open the folder, and the steps from `cli/` down to the ground.
MOST_ENTRIES, MOST_FLOORS = 28, 8
HEAVY = {
    "torch", "torchvision", "torchao", "torch_pruning", "onnx", "onnx_ir", "onnxruntime", "onnxscript",
    "onnxslim", "openvino", "nncf", "tensorrt", "tensorrt_rtx", "timm", "ray", "scipy", "matplotlib",
    "transformers", "numpy", "PIL", "sklearn", "safetensors",
}  # fmt: skip
STANDARD = {"__future__", *sys.stdlib_module_names}
GROUND_LIBRARIES = {room: {"pydantic", "numpy", "scipy", *STANDARD} for room in GROUND}
GROUND_LIBRARIES["workers"] = {"psutil", *GROUND_LIBRARIES["workers"]}
GROUND_LIBRARIES["store"] = {"filelock", "fsspec", *STANDARD}
GROUND_LIBRARIES["measure/queueing"] = {"numpy", "scipy", *STANDARD}
TALKS = {"cli", "report"}
NEED_HINTS = {"UsageError", "InputError", "TrustError", "MissingError", "StoreError"}
FORBIDDEN_WORDS = {
    word + plural
    for word in ("manager", "handler", "helper", "util", "service", "factory")
    for plural in ("", "s")
} | {"utility", "utilities", "factories"}
MOST_LINES = 450
MOST_PARAMETERS = 12
# Modules that deploy copies into bundles: of optcli they import each other alone (copied together), and
# NumPy and servers at once.
COPIED = {Path("serving/deploy/ray_files"), Path("serving/deploy/triton_files")}
ALONE = {
    *(Path("data/images.py"), Path("serving/prediction/known_answers.py")),
    *(Path(f"outputs/{name}.py") for name in ("postprocess", "instances", "suppression")),
    Path("serving/drift/input_statistics.py"),
}
# What a server loads a model by: each of these modules is the only one of its kind in a bundle.
NAMED_BY_SERVERS = {"Model", "TritonPythonModel"}
# Modules that compute: reading a recipe, `--help` and a build of cached steps load none of them.
LOAD_NUMPY = {
    Path(f"{folder}/{name}.py")
    for folder, names in {
        "measure/queueing": ("arrivals", "batching", "curve", "simulation"),
        "measure/roofline": ("onnxruntime", "openvino"),
        "serving/deploy": ("interface",),
        "serving/drift": ("compared", "comparing"),
        "serving/inference": ("answering", "confined_model"),
        "serving/loadtest": (
            "agreement", "calibrating", "canary", "client", "driving", "load_options", "payloads",
            "records",
        ),
        "serving/planning": ("configuring",),
    }.items()
    for name in names
}  # fmt: skip
# Tools skip folders of these names unless told otherwise: pytest, ruff, coverage, backup and search.
SKIPPED_BY_TOOLS = {
    "build", "dist", "env", "venv", "virtualenv", "node_modules", "site-packages", "buck-out", "eggs",
    "target", "vendor",
}  # fmt: skip
_FALSE = re.compile(r"False$|Field\((default=)?False\b")
_BY_NAME = re.compile(r"optcli(\.\w+)+(:\w+)?")


def violations(package: Path) -> list[str]:
    """Every breach of the house rules below a package's folder, as `file:line: what`."""
    found = []
    defined: dict[str, str] = {}
    for path in sorted(package.rglob("*.py")):
        relative = path.relative_to(package)
        if "__pycache__" in relative.parts:
            continue
        text = path.read_text(encoding="utf-8")
        room = _room(relative.with_suffix("").parts)
        tree = ast.parse(text)
        breaches = [*_Module(room, relative, tree, text).violations(), *_again(tree, relative, defined)]
        for line, what in sorted(breaches):
            found.append(f"{package.name}/{relative.as_posix()}:{line}: {what}")
    return found


def _again(tree: ast.Module, relative: Path, defined: dict[str, str]) -> Iterator[tuple[int, str]]:
    """Classes called as one in `defined`, by name; adds the others to it."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.ClassDef) or (
            relative.parent in COPIED and node.name in NAMED_BY_SERVERS
        ):
            continue
        first = defined.setdefault(node.name, f"{relative.as_posix()}:{node.lineno}")
        if first != f"{relative.as_posix()}:{node.lineno}":
            yield node.lineno, f"{node.name} is a class of {first} too: a class name means one thing"


class _Module:
    def __init__(self, room: str, relative: Path, tree: ast.Module, text: str) -> None:
        self.room, self.relative, self.tree, self.text = room, relative, tree, text

    def violations(self) -> Iterator[tuple[int, str]]:
        if self.room not in MAY_IMPORT:
            yield (
                1,
                f"{self.room} is no room of the house: add it to MAY_IMPORT and docs/architecture.md",
            )
            return
        yield from self._size_and_docstring()
        yield from self._names()
        yield from self._parameters()
        yield from self._imports()
        yield from self._trust()
        if self.relative.parent in COPIED or self.relative in ALONE:
            yield from self._own()
        else:
            yield from self._heavy(self.tree.body)
            yield from self._talk()
        yield from self._hints()

    def _is_program(self) -> bool:
        """Whether it may end the process: the command line, and what a bundle starts by itself."""
        return self.room in {"cli", "__main__"} or self.relative.parent in COPIED

    def _own(self) -> Iterator[tuple[int, str]]:
        for line, module in self._imported():
            if module.partition(".")[0] == "optcli" and not _is_alone(module):
                yield line, "a module that is copied into bundles may not import optcli"

    def _size_and_docstring(self) -> Iterator[tuple[int, str]]:
        lines = len(self.text.splitlines())
        if lines > MOST_LINES:
            yield lines, f"{lines} lines, more than {MOST_LINES}: split it"
        name = self.relative.stem
        if (name == "__init__" or not name.startswith("_")) and not ast.get_docstring(self.tree):
            yield 1, "a public module without a docstring"

    def _names(self) -> Iterator[tuple[int, str]]:
        # Modules of protocol buffers are called by the protocol.
        parts = [part for part in self.relative.parts if not part.endswith("_pb2.py")]
        names = [(1, part.removesuffix(".py")) for part in parts]
        definitions = ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef
        names += [
            (node.lineno, node.name) for node in ast.walk(self.tree) if isinstance(node, definitions)
        ]
        for line, name in names:
            for word in FORBIDDEN_WORDS & {part.lower() for part in _words(name)}:
                yield line, f"{name}: the word {word!r} says nothing; use one of the field"

    def _parameters(self) -> Iterator[tuple[int, str]]:
        for node in ast.walk(self.tree):
            if isinstance(node, ast.arguments):
                taken = [*node.posonlyargs, *node.args, *node.kwonlyargs]
                if len(taken) > MOST_PARAMETERS:
                    yield (
                        taken[0].lineno,
                        f"{len(taken)} parameters, more than {MOST_PARAMETERS}: take a dataclass",
                    )

    def _trust(self) -> Iterator[tuple[int, str]]:
        """Whatever is called `trust` or `trusted` is false where nobody says it."""
        for node in ast.walk(self.tree):
            named: list[tuple[str, ast.expr | None]] = []
            if isinstance(node, ast.arguments):
                plain = [*node.posonlyargs, *node.args][::-1]
                pairs = [*zip(plain, node.defaults[::-1], strict=False)]
                pairs += zip(node.kwonlyargs, node.kw_defaults, strict=True)
                named = [(each.arg, default) for each, default in pairs]
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                named = [(node.target.id, node.value)]
            for name, default in named:
                given = "False" if default is None else ast.unparse(default)
                if name in ("trust", "trusted") and not _FALSE.match(given):
                    yield default.lineno if default else 0, f"{name} is {given} where nobody says it"

    def _imports(self) -> Iterator[tuple[int, str]]:
        allowed = {self.room, *GROUND, *MAY_IMPORT[self.room]}
        libraries = GROUND_LIBRARIES.get(self.room)
        for line, module in self._imported():
            first, _, rest = module.partition(".")
            target = _room(rest.split("."))
            if first == "optcli":
                # `optcli` itself holds the version and two names that load what they need.
                if target in MAY_IMPORT and target not in allowed:
                    yield line, f"{self.room} may not import {target}"
            elif first == "click" and self.room != "cli":
                yield line, "click outside cli"
            elif libraries and first not in libraries:
                yield line, f"{self.room} is the ground, it may not import {first}"

    def _imported(self) -> Iterator[tuple[int, str]]:
        """Every module named in an import anywhere, or in a string that is loaded by name."""
        here = ("optcli", *self.relative.parts[:-1])
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                yield from ((node.lineno, alias.name) for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                base = [*here[: len(here) - node.level + 1]] if node.level else []
                base += [node.module] if node.module else []
                # `from optcli import passes` names a room only with what is imported.
                yield from ((node.lineno, ".".join([*base, alias.name])) for alias in node.names)
            elif isinstance(node, ast.Constant) and re.fullmatch(_BY_NAME, str(node.value)):
                yield node.lineno, node.value.partition(":")[0]

    def _heavy(self, body: list[ast.stmt]) -> Iterator[tuple[int, str]]:
        """Heavy libraries that importing the module would load; functions are not looked into."""
        for node in body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or _is_type_checking(node):
                continue
            modules = []
            if isinstance(node, ast.Import):
                modules = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and not node.level:
                modules = [node.module or ""]
            for module in modules:
                if module == "numpy" and self.relative in LOAD_NUMPY:
                    continue
                if module.partition(".")[0] in HEAVY:
                    yield (
                        node.lineno,
                        f"{module} is loaded with the module: import it inside a function",
                    )
            for name in ("body", "orelse", "finalbody", "handlers"):
                inner = getattr(node, name, [])
                yield from self._heavy([each for each in inner if isinstance(each, ast.stmt)])
                for each in inner:
                    if isinstance(each, ast.ExceptHandler):
                        yield from self._heavy(each.body)

    def _hints(self) -> Iterator[tuple[int, str]]:
        """Errors about what a user wrote or gave: each says what to do."""
        for node in ast.walk(self.tree):
            called = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
            if called in NEED_HINTS and not any(word.arg == "hint" for word in node.keywords):
                yield node.lineno, f"{called} without a hint"

    def _talk(self) -> Iterator[tuple[int, str]]:
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Raise) and node.exc is not None and not self._is_program():
                raised = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
                if ast.unparse(raised) == "SystemExit":
                    yield node.lineno, "SystemExit outside cli"
            if not isinstance(node, ast.Call):
                continue
            called = ast.unparse(node.func)
            if called == "print" and self.room not in TALKS:
                yield node.lineno, f"print outside {' and '.join(sorted(TALKS))}: tell the observer"
            if called in {"sys.exit", "exit", "quit"} and not self._is_program():
                yield node.lineno, f"{called} outside cli: raise an OptcliError"
            if called == "os._exit" and self.room not in {"cli", "workers"}:
                yield node.lineno, "os._exit outside workers"


def _room(parts: Sequence[str]) -> str:
    """The room of a module by the parts of its path below `optcli`: a folder's own line comes first."""
    inner = "/".join(parts[:2])
    return inner if inner in MAY_IMPORT else parts[0]


def _is_alone(module: str) -> bool:
    return Path(*module.split(".")[1:]).with_suffix(".py") in ALONE


def _is_type_checking(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) in {
        "TYPE_CHECKING",
        "typing.TYPE_CHECKING",
    }


def _words(name: str) -> list[str]:
    """The words of a name in either case; "service level" is a word of the field."""
    return re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", re.sub("(?i)service_?level", "slo", name))


@pytest.mark.long
@pytest.mark.slow
def test_the_house_rules_hold():
    found = violations(PACKAGE)
    assert not found, "\n" + "\n".join(found)


def test_every_room_is_looked_at():
    rooms = {path.name.removesuffix(".py") for path in PACKAGE.iterdir() if path.name != "__pycache__"}
    assert {"passes", "runners", "store", "errors", "__init__"} <= rooms


def test_the_listing_is_short_and_imports_point_down():
    entries = {each.name for each in PACKAGE.iterdir() if each.is_file() or any(each.rglob("*.py"))}
    assert len(entries) <= MOST_ENTRIES, sorted(entries)
    top = {
        room: {each.partition("/")[0] for name in MAY_IMPORT if name.partition("/")[0] == room
               for each in MAY_IMPORT[name]} - {room}
        for room in {name.partition("/")[0] for name in MAY_IMPORT}
    }  # fmt: skip
    floors = TopologicalSorter(top)
    floors.prepare()  # raises CycleError for a circle of rooms
    # The ground is one floor; `__init__` and `__main__` name what lies below.
    depth: dict[str, int] = {}
    for room in TopologicalSorter(top).static_order():
        depth[room] = 1 + max((depth[each] for each in top[room]), default=0 if room in GROUND else 1)
    assert max(depth[room] for room in top if not room.startswith("__")) <= MOST_FLOORS, depth


@pytest.mark.parametrize(
    ("file", "code", "expected"),
    [
        ("passes/export.py", "from optcli.runners import Runner", "passes may not import runners"),
        ("passes/export.py", "from optcli import runners", "passes may not import runners"),
        ("passes/export.py", "import optcli.store.entry", "passes may not import store"),
        ("passes/export.py", "from ..store import Store", "passes may not import store"),
        ("passes/export.py", "from .. import store", "passes may not import store"),
        (
            "passes/export.py",
            "def run():\n    from optcli import pipeline",
            "passes may not import pipeline",
        ),
        ("measure/latency/process.py", "import optcli.accuracy", "latency may not import accuracy"),
        ("accuracy/top1.py", "from optcli.measure.latency import x", "may not import measure/latency"),
        ("models/formats/onnx.py", "import optcli.passes", "models/formats may not import passes"),
        (
            "store/__init__.py",
            "import optcli.models.formats.onnx",
            "store may not import models/formats",
        ),
        ("files/digest.py", "import optcli.store", "files may not import store"),
        ("report/table.py", "import optcli.pipeline", "report may not import pipeline"),
        ("pipeline/steps.py", "from optcli.cli import main", "pipeline may not import cli"),
        ("pipeline/steps.py", "from optcli.tuning import repair", "pipeline may not import tuning"),
        (
            "recipe/check.py",
            "CALL = 'optcli.measure.latency.process:serve'",
            "recipe may not import measure/latency",
        ),
        ("observer.py", "import ruamel.yaml", "observer is the ground, it may not import ruamel"),
        (
            "store/why.py",
            "import pydantic_core",
            "store is the ground, it may not import pydantic_core",
        ),
        ("pipeline/steps.py", "def f():\n    import click", "click outside cli"),
        ("pipeline/steps.py", "def f(path, trust=True): ...", "trust is True where nobody says it"),
        ("pipeline/steps.py", "def f(*, trusted=1): ...", "trusted is 1 where nobody says it"),
        ("pipeline/steps.py", "class A:\n    trust: bool = True", "trust is True where nobody says it"),
        ("passes/export.py", "import torch", "torch is loaded with the module"),
        (
            "passes/export.py",
            "from torch.export import export",
            "torch.export is loaded with the module",
        ),
        ("passes/export.py", "try:\n    import os\nexcept OSError:\n    import nncf", "nncf is loaded"),
        (
            "passes/export.py",
            "if 1:\n    pass\nelse:\n    import numpy.random",
            "numpy.random is loaded",
        ),
        ("passes/export.py", "class A:\n    import PIL", "PIL is loaded"),
        ("passes/export.py", "x = 1\n" * 450, "452 lines, more than 450"),
        (
            "passes/export.py",
            "def f(a, b, c, d, e, f, g, *, h, i, j, k, l, m): ...",
            "13 parameters, more than 12: take a dataclass",
        ),
        ("passes/export.py", "def f():\n    print(1)", "print outside cli and report"),
        ("passes/export.py", "import sys\nsys.exit(1)", "sys.exit outside cli"),
        ("passes/export.py", "raise SystemExit(2)", "SystemExit outside cli"),
        ("passes/export.py", "import os\nos._exit(1)", "os._exit outside workers"),
        ("passes/export.py", "class StoreManager: ...", "'manager'"),
        ("passes/export.py", "class A:\n    def http_handlers(self): ...", "'handlers'"),
        ("passes/utils.py", "", "'utils'"),
        ("pipeline/helpers/steps.py", "", "'helpers'"),
        ("misc/steps.py", "", "misc is no room"),
        ("data/npz.py", "def f():\n    raise InputError('no')", "InputError without a hint"),
        (
            "serving/deploy/ray_files/app.py",
            "import numpy\nfrom optcli.errors import InputError",
            "may not import optcli",
        ),
    ],
)
def test_a_planted_breach_is_found(tmp_path, file, code, expected):
    planted = tmp_path / "optcli" / file
    planted.parent.mkdir(parents=True)
    planted.write_text(f'"""A module."""\n\n{code}')
    found = violations(tmp_path / "optcli")
    assert len(found) == 1, found
    assert re.match(rf"optcli/{re.escape(file)}:\d+: ", found[0])
    assert expected in found[0]


def test_a_class_name_that_means_two_things_is_found(tmp_path):
    for file in ("passes/prune.py", "report/gate.py"):
        (tmp_path / file).parent.mkdir(parents=True)
        (tmp_path / file).write_text('"""A module."""\n\nclass Row: ...\n')
    assert violations(tmp_path) == [
        f"{tmp_path.name}/report/gate.py:3: Row is a class of passes/prune.py:3 too:"
        " a class name means one thing"
    ]


def test_a_missing_docstring_is_found(tmp_path):
    (tmp_path / "observer.py").write_text("import os\n")
    (tmp_path / "_private.py").write_text("")
    assert any(
        each.endswith("observer.py:1: a public module without a docstring")
        for each in violations(tmp_path)
    )


def test_all_breaches_are_told_at_once_with_their_lines(tmp_path):
    (tmp_path / "observer.py").write_text('"""D."""\nimport torch\n\n\ndef util():\n    print(1)\n')
    assert [each.split(": ")[0] for each in violations(tmp_path)] == [
        f"{tmp_path.name}/observer.py:{line}" for line in (2, 2, 5, 6)
    ]


@pytest.mark.parametrize(
    ("file", "code"),
    [
        ("passes/export.py", "import typing\nif typing.TYPE_CHECKING:\n    import torch"),
        (
            "passes/export.py",
            "def run():\n    import torch\n    from optcli.models.formats import onnx",
        ),
        ("passes/export.py", "class A:\n    def run(self):\n        import torch"),
        ("passes/export.py", "from optcli import __version__, digest\nfrom . import Pass"),
        ("store/entry.py", "def f():\n    import filelock"),
        ("results/statistics.py", "def f():\n    import scipy"),
        ("cli/build.py", "import click, sys\nprint(1)\nsys.exit(1)"),
        ("report/table.py", "import rich\nprint(1)"),
        ("workers/child.py", "import os\nos._exit(1)"),
        ("pipeline/steps.py", "CALL = 'optcli.measure.latency.process:serve'"),
        (
            "pipeline/steps.py",
            "class A:\n    trust: bool = False\ndef f(path, trust, *, trusted=False): ...",
        ),
        ("passes/utilise.py", "class ServiceLevel: ...\ndef service_level_ms(): ..."),
    ],
)
def test_what_is_allowed_is_let_alone(tmp_path, file, code):
    allowed = tmp_path / "optcli" / file
    allowed.parent.mkdir(parents=True, exist_ok=True)
    allowed.write_text(f'"""A module."""\n\n{code}')
    assert violations(tmp_path / "optcli") == []


def skipped_by_tools(folder: Path) -> list[str]:
    """The folders below one that a tool skips by its default, because of what they are called."""
    return sorted(
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*")
        if path.is_dir() and (path.name.lower() in SKIPPED_BY_TOOLS or path.name.startswith("."))
    )


@pytest.mark.parametrize("folder", ["optcli", "tests", "benchmarks", "docs", "recipes"])
def test_no_folder_is_called_what_tools_skip(folder):
    assert skipped_by_tools(PACKAGE.parent / folder) == []


def test_a_folder_that_tools_skip_is_found(tmp_path):
    (tmp_path / "room" / "build").mkdir(parents=True)
    (tmp_path / ".hidden").mkdir()
    assert skipped_by_tools(tmp_path) == [".hidden", "room/build"]
