"""An artifact that was built and cannot run here: its figures are null, and nobody is misled."""

import json

import pytest
from report_forms import markdown, page, text
from tiny_project import project_in, want_a_gpu

from optcli.report import csv_text
from optcli.results import flags


@pytest.fixture(scope="module")
def built(template, tmp_path_factory):
    """One variant's runner needs a GPU, and there is none."""
    place = tmp_path_factory.mktemp("built")
    project = project_in(place, template)
    with pytest.MonkeyPatch.context() as patch:
        want_a_gpu(project, patch)
        return project.build()


@pytest.mark.slow
def test_it_is_built_and_has_no_figures(built):
    variant = built.variants["engine"]
    assert variant.status in ("built", "cached")
    assert variant.artifact is not None
    assert variant.flags == (flags.no_gpu(),)
    assert (variant.latency, variant.accuracy, variant.verdicts) == ((), None, ())
    assert "no NVIDIA GPU was found, so neither latency nor accuracy is known" in variant.reason
    assert "run on a machine with a GPU" in variant.reason
    assert built.exit_code == 0
    assert built.recommended != "engine"
    assert all(built.variants[name].latency for name in ("plain", "copied"))
    assert built.variants["plain"].flags == ()


@pytest.mark.slow
def test_every_form_of_the_report_says_so(built):
    row = next(line for line in text(built).splitlines() if line.startswith("engine "))
    assert row.endswith("not run: no GPU")
    assert row.count("n/a") >= 3
    assert "engine: not measured here: no NVIDIA GPU was found" in text(built)
    assert any("not run: no GPU" in line for line in markdown(built).splitlines() if "engine" in line)
    assert "not run: no GPU" in page(built)
    (flag,) = json.loads(built.to_json())["variants"]["engine"]["flags"]
    assert flag == {"kind": "no-gpu", "figures": {}, "text": "no GPU"}
    assert any(line.endswith("no-gpu,") for line in csv_text(built).splitlines() if "engine" in line)
