"""`optcli.build(...)` from a script, as the README shows it."""

import subprocess
import sys

import pytest
from tiny_project import DATA, write_images

from optcli.errors import InputError

SCRIPT = """\
import optcli
options = {"store": None, "only": ["copied"], "overrides": ["latency.calls=3"]}
first = optcli.build("recipe.yaml", **options)
second = optcli.build("recipe.yaml", **options)
one, again = first.variants["copied"], second.variants["copied"]
print(one.status, again.status, *second.variants, one.build_s == again.build_s > 0)
"""


@pytest.mark.long
@pytest.mark.slow
def test_a_script_without_a_guard_builds_twice(project):
    project.recipe('  plain: []\n  copied: ["./fakes.py:Copy"]\n  left: []\n')
    (project.folder / "script.py").write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, "script.py"],
        cwd=project.folder,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert (done.stdout, done.returncode) == ("built cached plain copied True\n", 0), done.stderr


@pytest.mark.slow
def test_labels_are_missed_before_any_work(project):
    (project.folder / "flat").mkdir()
    write_images(project.folder / "flat", seed=1)
    for image in project.folder.glob("flat/?/*"):
        image.rename(project.folder / "flat" / image.name)
    before, evaluation = DATA.split("  evaluation:")
    data = f"{before}  evaluation:{evaluation.replace('images', 'flat')}"
    project.recipe("  plain: []\n", data=data)
    with pytest.raises(InputError, match="top1 needs labels"):
        project.build()
    assert not (project.artifacts / "tiny").exists()


@pytest.mark.slow
@pytest.mark.parametrize("role", ["calibration", "evaluation"])
def test_one_sample_of_every_role_is_prepared_before_any_work(project, role):
    lines = [
        line.replace("prepare: {", "prepare: {channel_order: grey, ") if f"  {role}:" in line else line
        for line in DATA.splitlines()
    ]
    project.recipe("  plain: []\n", data="\n".join(lines) + "\n")
    with pytest.raises(InputError, match="wants 3 channels"):
        project.build()
    assert not (project.artifacts / "tiny").exists()
