"""The workflow files in docs/ci: valid for their systems, and every optcli command in them is one."""

import re
import shlex
import subprocess
from pathlib import Path

import pytest
from needs import imported
from ruamel.yaml import YAML

from optcli.cli.gate import command
from optcli.gate.terms import KINDS, accepted

ROOT = Path(__file__).resolve().parents[2]
CI = ROOT / "docs" / "ci"
# The systems' own schemas, of which check-jsonschema has copies.
SCHEMAS = {"github-actions.yml": "vendor.github-workflows", "gitlab-ci.yml": "vendor.gitlab-ci"}
BROKEN = {
    "github-actions.yml": [
        ("timeout-minutes: 60", "timeout-minutes: [60]"),
        ("    runs-on: ubuntu-latest\n", ""),
        ("contents: read", "contents: look"),
        ("pull_request:", "pull_requests:"),
        ("- uses: actions/checkout@v4", "- use: actions/checkout@v4"),
    ],
    "gitlab-ci.yml": [
        ("when: always", "when: sometimes"),
        ("stage: test", "stage: {test: 1}"),
        ("  script:\n", "  scripts:\n"),
        ("junit: gate.xml", "junit: {file: gate.xml}"),
        ("key: optcli", "key: [optcli]"),
    ],
}


def refused(name, text):
    """Where a workflow's text does not fit the schema of its system."""
    from check_jsonschema.builtin_schemas import get_builtin_schema

    validator = imported("jsonschema").Draft7Validator
    schema = get_builtin_schema(SCHEMAS[name])
    return [each.json_path for each in validator(schema).iter_errors(YAML(typ="safe").load(text))]


@pytest.mark.slow
def test_the_action_fits_githubs_schema(monkeypatch):
    monkeypatch.setitem(SCHEMAS, "action.yml", "vendor.github-actions")
    text = (ROOT / "action.yml").read_text()
    assert refused("action.yml", text) == []
    assert refused("action.yml", text.replace("using: composite", "using: [composite]"))
    assert refused(
        "action.yml", text.replace("    - name: Gate\n      shell: bash\n", "    - name: Gate\n")
    )


def steps_of_the_action():
    """Inputs at their defaults, and the script of each step by name."""
    action = YAML(typ="safe").load((ROOT / "action.yml").read_text())
    inputs = {name: about.get("default", "") for name, about in action["inputs"].items()}
    return inputs, {step["name"]: step["run"] for step in action["runs"]["steps"] if "run" in step}


def test_the_action_calls_the_gate_as_it_is():
    inputs, steps = steps_of_the_action()
    values = {"RECIPE": "recipe.yaml", "BASELINE": "git:abc", "ACCEPT": inputs["accept"]}
    (found,) = re.findall(r"optcli (gate [^\n]+)", steps["Gate"].replace("$OPTIONS", inputs["options"]))
    written = re.sub(r"\$(\w+)", lambda match: values[match.group(1)], found)
    context = command.make_context("gate", shlex.split(written)[1:])
    assert context.params["reference"] == "git:abc"
    assert context.params["on_inconclusive"] == "pass"
    assert accepted(context.params["accept"]) == {"untracked-data"}
    assert "gate.md" in steps["Comment"]


def installed_by(script, folder, source, **variables):
    """What a script tells pip to install for a recipe with this source."""
    (folder / "recipes").mkdir(exist_ok=True)
    (folder / "recipes" / "model.yaml").write_text(f"version: 1\nmodel: {{{source}}}\n")
    (folder / "bin").mkdir(exist_ok=True)
    for name in ("pip", "git", "apt-get"):
        (folder / "bin" / name).write_text(f'#!/bin/sh\necho "{name} $*"\n')
        (folder / "bin" / name).chmod(0o755)
    done = subprocess.run(
        ["sh", "-ec", script],
        capture_output=True,
        text=True,
        check=True,
        cwd=folder,
        env={**variables, "PATH": f"{folder / 'bin'}:/bin:/usr/bin"},
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("pip ")]
    return [line.replace(" --quiet", "") for line in lines]


def test_whoever_calls_the_action_may_say_what_is_installed(tmp_path):
    script = steps_of_the_action()[1]["Install optcli"]
    told = {"ACTION": "/the/action", "RECIPE": "recipes/model.yaml", "PACKAGES": "nncf timm"}
    small = installed_by(script, tmp_path, "source: timm:a", INSTALL="onnx", **told)
    assert small[-1] == "pip install -c /the/action/constraints.txt nncf timm"
    assert small[0] == "pip install --no-compile -r /the/action/requirements/onnx.txt"
    assert installed_by(script, tmp_path, "source: onnx:a", INSTALL="all", **told)[0] == (
        "pip install /the/action"
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", SCHEMAS)
def test_a_workflow_fits_its_systems_schema(name):
    text = (CI / name).read_text()
    assert refused(name, text) == []
    for right, wrong in BROKEN[name]:
        assert right in text
        assert refused(name, text.replace(right, wrong)), wrong


def test_the_hook_is_a_shell_script_that_can_be_run():
    assert subprocess.run(["sh", "-n", str(CI / "pre-push")], check=False).returncode == 0
    assert (CI / "pre-push").stat().st_mode & 0o111


def commands(name):
    """Every `optcli gate ...` of a file, as arguments."""
    text = (CI / name).read_text()
    if name in SCHEMAS:
        text = "\n".join(strings(YAML(typ="safe").load(text)))
    plain = re.sub(r"\$\{\{.*?\}\}", "X", text)
    found = re.findall(r"optcli (gate [^\n]+)", plain)
    return [shlex.split(each.partition("<")[0])[1:] for each in found]


def strings(value):
    if isinstance(value, str):
        yield value
    for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from strings(item)


def scripts_that_install():
    for name in SCHEMAS:
        scripts = strings(YAML(typ="safe").load((CI / name).read_text()))
        yield next(each for each in scripts if "onnx.txt" in each), "../optcli", {}
    yield (
        steps_of_the_action()[1]["Install optcli"],
        "/the/action",
        {"ACTION": "/the/action", "INSTALL": "auto", "RECIPE": "recipes/model.yaml"},
    )


@pytest.mark.parametrize(("script", "place", "variables"), list(scripts_that_install()))
def test_pytorch_is_installed_only_where_the_model_is_no_onnx_file(tmp_path, script, place, variables):
    small = [
        f"pip install --no-compile -r {place}/requirements/onnx.txt",
        f"pip install --no-compile --no-deps {place}",
    ]
    for source in (
        "source: onnx:model.onnx",
        'source: "onnx:models/a b.onnx"',
        "source: openvino:model.xml",
        "'source': 'onnx:m.onnx'",
    ):
        assert installed_by(script, tmp_path, source, **variables) == small
    for source in ("source: torchvision:resnet18", "source: python:onnx.py:Net", "weights: onnx:a"):
        assert installed_by(script, tmp_path, source, **variables) == [f"pip install {place}"]


@pytest.mark.parametrize("name", [*SCHEMAS, "pre-push"])
def test_every_command_is_one_that_optcli_takes(name):
    found = commands(name)
    assert found
    for arguments in found:
        context = command.make_context("gate", list(arguments))
        assert context.params["reference"].startswith("git:")
        assert context.params["on_inconclusive"] == "pass"
        assert context.params["accept"]


def accepted_by(name, **environment):
    """What the script of a workflow hands to `--accept`."""
    scripts = [
        each for each in strings(YAML(typ="safe").load((CI / name).read_text())) if "accept=" in each
    ]
    (script,) = scripts
    script = re.sub(r"optcli gate[^\n]*", 'printf %s "$accept"', script)
    done = subprocess.run(
        ["sh", "-c", script],
        capture_output=True,
        text=True,
        check=True,
        env={**environment, "PATH": "/bin:/usr/bin"},
    )
    return accepted([done.stdout])


@pytest.mark.parametrize(
    ("name", "labels"),
    [
        ("github-actions.yml", {"LABELS": "bug gate-accept-bar gate-accept-threads"}),
        ("gitlab-ci.yml", {"CI_MERGE_REQUEST_LABELS": "bug,gate-accept-bar,gate-accept-threads"}),
    ],
)
def test_labels_declare_what_may_have_changed(name, labels):
    assert accepted_by(name, **labels) == {"untracked-data", "bar", "threads"}
    assert accepted_by(name) == {"untracked-data"}


def test_every_kind_that_accept_takes_is_explained():
    text = (CI.parent / "gate.md").read_text()
    table = text[text.index("| `--accept` |") : text.index("Passes may change without permission")]
    assert set(
        re.findall(
            r"`([a-z-]+)`", " ".join(row.split("|")[1] for row in table.splitlines() if "|" in row)
        )
    ) >= set(KINDS)


def test_the_help_of_accept_names_every_kind():
    (said,) = [each.help for each in command.params if each.name == "accept"]
    assert said.partition("Kinds: ")[2].rstrip(".").split(", ") == list(KINDS)
