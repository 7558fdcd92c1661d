"""`optcli compare`: from the report alone, in every form; several reports, refusals and --force."""

from __future__ import annotations

import csv
import io
import json
import shutil

import pytest


@pytest.fixture
def reports(place):
    """The built report, a copy that is half as fast, and one of another machine."""
    folder = place.folder / "reports"
    folder.mkdir()
    first = json.loads((place.artifacts / "tiny" / "report.json").read_text())
    (folder / "first.json").write_text(json.dumps(first))
    slower = json.loads(json.dumps(first))
    for variant in slower["variants"].values():
        variant["artifact"]["key"] = "changed"
        for row in variant["latency"]:
            for name in ("p50_ms", "p90_ms", "p95_ms", "p99_ms"):
                if row[name]:
                    row[name] = {end: v and 20 * v for end, v in row[name].items()}
    (folder / "slower.json").write_text(json.dumps(slower))
    slower["environment"]["cpu"]["model"] = "another CPU"
    (folder / "elsewhere.json").write_text(json.dumps(slower))
    return folder


@pytest.mark.slow
def test_every_build_writes_a_page_that_names_all_variants(place):
    page = (place.artifacts / "tiny" / "report.html").read_text()
    assert page.startswith("<!DOCTYPE html>")
    assert "plain" in page
    assert "copied" in page
    assert 'class="area"' in page, "the distributions are drawn"


@pytest.mark.slow
def test_a_cached_build_draws_the_same_distributions(place, optcli):
    path = place.artifacts / "tiny" / "report.html"
    before = path.read_text().count('class="area"')
    path.unlink()
    assert optcli("build", "recipe.yaml").code == 0
    assert path.read_text().count('class="area"') == before > 0


@pytest.mark.slow
def test_a_recipe_is_found_by_its_name_without_its_data(place, optcli):
    wanted = optcli("compare", "tiny").out
    shutil.rmtree(place.folder / "images")
    (place.folder / "model.onnx").unlink()
    assert optcli("compare", "recipe.yaml").out == wanted
    (place.folder / "child.yaml").write_text("extends: recipe.yaml\nlatency: {nonsense: true}\n")
    assert optcli("compare", "child.yaml").out == wanted
    assert optcli("verify-accuracy", "recipe.yaml").code == 0


@pytest.mark.slow
def test_a_folder_is_a_report(place, optcli):
    assert optcli("compare", place.artifacts / "tiny").out == optcli("compare").out


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("version: 1\n", "nameless.yaml:1:1: name: found nothing: wanted a name"),
        (
            "name: ../up\n",
            "nameless.yaml:1:7: name: found '../up': wanted a name that is valid for a folder",
        ),
        ("name: [\n", "nameless.yaml:"),
    ],
)
def test_a_recipe_without_a_usable_name(place, optcli, text, says):
    (place.folder / "nameless.yaml").write_text(text)
    said = optcli("compare", "nameless.yaml")
    assert said.code == 2
    assert says in said.err
    assert "hint: " in said.err


def test_a_name_that_is_nearly_right(place, optcli):
    said = optcli("compare", "tniy")
    assert said.code == 2
    assert "no report here yet\n  hint: did you mean 'tiny'?" in said.err


def test_each_form_of_one_report(place, optcli):
    assert optcli("compare", "--format", "markdown").out == optcli("compare", "--markdown").out
    assert optcli("compare", "--format", "json").out == optcli("compare", "--json").out
    rows = list(csv.DictReader(io.StringIO(optcli("compare", "--format", "csv").out)))
    assert [row["variant"] for row in rows] == ["plain", "copied"]
    page = optcli("compare", "--format", "html").out
    assert page.startswith("<!DOCTYPE html>")
    assert 'class="area"' in page, "drawn from the samples beside the report"


@pytest.mark.slow
def test_an_output_file_says_its_form_by_its_name(place, optcli, tmp_path):
    for name, begins in (
        ("a.html", "<!DOCTYPE"),
        ("a.md", "## tiny"),
        ("a.csv", "recipe,"),
        ("a.json", "{"),
    ):
        said = optcli("compare", "--output", tmp_path / name)
        assert (said.code, said.out) == (0, "")
        assert f"wrote {tmp_path / name}" in said.err
        assert (tmp_path / name).read_text().startswith(begins)
    optcli("compare", "--output", tmp_path / "a.txt")
    assert (tmp_path / "a.txt").read_text().rstrip() == optcli("compare").out.rstrip()


def test_two_forms_at_once_are_refused(place, optcli):
    said = optcli("compare", "--json", "--format", "csv")
    assert said.code == 2
    assert "found csv and json, wanted one form\n  hint: " in said.err


def test_a_page_without_samples_or_with_damaged_ones(place, optcli):
    samples = place.artifacts / "tiny" / "samples.npz"
    samples.write_bytes(b"not a zip")
    assert "the raw samples are not beside this report" in optcli("compare", "--format", "html").out
    samples.unlink()
    said = optcli("compare", "--format", "html")
    assert said.code == 0
    assert "the raw samples are not beside this report" in said.out


@pytest.mark.slow
def test_several_reports(reports, optcli):
    first, slower = reports / "first.json", reports / "slower.json"
    said = optcli("compare", first, slower, "tiny")
    assert said.code == 0, said.err
    assert said.out.count(" → ") > 3
    assert "slower" in said.out
    record = json.loads(optcli("compare", first, slower, "--json").out)
    assert record[0]["schema"] == 1
    assert record[0]["variants"][0]["latency"][0]["p50"]["ratio"]["value"] == pytest.approx(20)
    assert optcli("compare", first, slower, "--markdown").out.startswith("## ")
    assert optcli("compare", first, slower, "--format", "csv").out.startswith("before,after,comparable")
    assert "What changed" in optcli("compare", first, slower, "--format", "html").out


@pytest.mark.slow
@pytest.mark.parametrize("form", ["terminal", "markdown", "json", "csv", "html"])
def test_other_machines_are_refused_unless_forced(reports, optcli, form):
    line = ("compare", reports / "first.json", reports / "elsewhere.json", "--format", form)
    said = optcli(*line)
    assert (said.code, said.out) == (5, "")
    assert "not comparable because the CPU differs (" in said.err
    assert "another CPU)\n  hint: " in said.err
    assert "--force" in said.err
    forced = optcli(*line, "--force")
    assert forced.code == 0
    assert "another CPU" in forced.out or form == "csv"
    assert form != "csv" or "False" in forced.out


def test_a_file_that_cannot_be_written_is_named(place, optcli):
    for verb in (("compare", "--output"), ("verify-accuracy", "--junit")):
        said = optcli(*verb, place.folder / "gone" / "x.html")
        assert said.code == 2
        assert "gone/x.html: cannot be written: No such file or directory" in said.err
