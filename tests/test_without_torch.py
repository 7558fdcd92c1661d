"""An installation of `requirements/onnx.txt`: what PyTorch is for cannot be imported in any process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from test_installation import WITH_TORCH

TESTS = Path(__file__).parent
# What every interpreter imports first that finds it.
ABSENT = f"""
import sys
from importlib import metadata

ABSENT = {sorted(name.replace("-", "_") for name in WITH_TORCH)}


class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ABSENT:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)


def version(name, usual=metadata.version):
    if name.replace("-", "_") in ABSENT:
        raise metadata.PackageNotFoundError(name)
    return usual(name)


sys.meta_path.insert(0, Absent())
metadata.version = version
"""
VARIANTS = """
  plain: []
  int8: {passes: [optimize_onnx, {quantize_onnxruntime: {output_tail: quantized}}], gate: true}
  nncf: [quantize_nncf]
"""


def without_torch(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    (folder / "absent").mkdir(exist_ok=True)
    (folder / "absent" / "sitecustomize.py").write_text(ABSENT)
    path = os.pathsep.join(map(str, (folder / "absent", TESTS, TESTS.parent)))
    return subprocess.run(
        [sys.executable, "-P", *command],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path, "OPTCLI_STORE": str(folder / "store")},
        capture_output=True,
        text=True,
        check=False,
    )


JUDGED = f"""
import json, sys
from pathlib import Path

import quiet, warm_workers
from gated_project import Script, commit, git, judge
from tiny_project import DATA, Project, write_recipe

from optcli.gate import variant

quiet.lift()
variant.compare = Script()
folder = Path("project").absolute()
folder.mkdir()
write_recipe(folder)
project = Project(folder, Path("store").absolute(), folder / "artifacts")
project.recipe({VARIANTS!r}, data=DATA)
(folder / ".gitignore").write_text("images/\\nartifacts/\\n")
git(folder, "init", "-q")
commit(project, "one")
with warm_workers.instead_of_cold():
    built, judged = project.build(), judge(project)
json.dump({{
    "statuses": {{name: each.status for name, each in built.variants.items()}},
    "reasons": {{name: each.reason for name, each in built.variants.items()}},
    "accuracy": built.variants["int8"].accuracy.value,
    "p50": built.variants["int8"].latency[0].p50_ms.value,
    "gate": judged.exit_code,
    "compared": [each.metric for each in judged.variants["int8"].comparisons],
    "torch": sorted(set(sys.modules) & {{"torch", "nncf"}}),
}}, sys.stdout)
"""


@pytest.mark.slow
@pytest.mark.long
def test_an_onnx_recipe_is_built_and_gated_without_pytorch(tmp_path):
    done = without_torch(tmp_path, "-c", JUDGED)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["statuses"] == {"plain": "built", "int8": "built", "nncf": "skipped"}
    assert said["reasons"]["nncf"] == "the package nncf is not installed (pip install nncf)"
    assert said["accuracy"] > 0.5
    assert said["p50"] > 0
    assert said["gate"] == 0
    assert {"p50", "size", "accuracy"} <= {*said["compared"]}
    assert said["torch"] == []
