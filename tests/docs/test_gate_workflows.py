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

CI = Path(__file__).resolve().parents[2] / "docs" / "ci"
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
