"""Which workers of a build are confined, and what becomes of what was made under `--trust`."""

from __future__ import annotations

import json

import pytest
from tiny_project import DATA, HEAD

from optcli import workers
from optcli.artifact import Artifact, Format
from optcli.errors import StepError, TrustError
from optcli.pipeline import trusting
from optcli.pipeline.local_maker import LocalMaker
from optcli.pipeline.making import planned
from optcli.store import Store
from optcli.workers import ForkServer, confinement

VARIANTS = """\
  plain: []
  int8: [quantize_onnxruntime]
  copied: ["./fakes.py:Copy"]
  ov: {passes: [to_openvino], runner: openvino}
"""


@pytest.fixture
def confined(monkeypatch):
    """The functions that workers are asked for, by whether they are confined."""
    found: dict[str, list[bool]] = {}

    def noting(function, real):
        def call(*arguments, **options):
            asked = next(each for each in arguments if isinstance(each, str))
            found.setdefault(asked.partition(":")[2], []).append(options.get("confined") is not None)
            return real(*arguments, **options)

        return call

    monkeypatch.setattr(ForkServer, "start", noting("start", ForkServer.start))
    monkeypatch.setattr(workers, "spawn", noting("spawn", workers.spawn))
    monkeypatch.setattr(workers, "run", noting("run", workers.run))
    return found


@pytest.mark.slow
def test_a_build_of_a_file_opens_it_and_what_is_made_of_it_in_confined_workers(project, confined):
    project.recipe("  plain: []\n  int8: [quantize_onnxruntime]\n", data=DATA)
    report = project.build()
    assert all(variant.status == "built" for variant in report.variants.values())
    assert confined["make_source"] == [True]
    assert confined["make_artifact"] == [True]
    assert all(confined["serve"])
    assert all(confined["evaluate"])
    assert confined["prepare_data"] == [False]


@pytest.mark.slow
def test_a_worker_that_claims_to_have_made_code_costs_its_variant(project, unmeasured, monkeypatch):
    """A program from elsewhere may answer in its worker's place: code would be opened unconfined."""
    real = LocalMaker.make

    def claiming(self, order, work):
        record = real(self, order, work)
        return {**record, "format": "torch"} if order.kind == "artifact" else record

    monkeypatch.setattr(LocalMaker, "make", claiming)
    project.recipe("  plain: []\n")
    with pytest.raises(StepError, match="says that it made torch, not onnx"):
        project.build()


def plan_of(project, variants=VARIANTS, head=HEAD, data=DATA):
    project.recipe(variants, head=head, data=data)
    return planned(project.folder / "recipe.yaml", Store(project.store), (), ())


def test_steps_that_run_the_users_own_python_are_left_free(project):
    plan = plan_of(project)
    last = {variant.name: variant.last for variant in plan.variants}
    held = {name: trusting.is_confined(step, plan) for name, step in last.items()}
    assert held == {"plain": True, "int8": True, "copied": False, "ov": True}


def test_samples_of_the_users_own_python_leave_free_what_reads_them(project):
    (project.folder / "samples.py").write_text("def samples(): return []\n")
    data = DATA.replace("imagefolder:images", "python:samples.py:samples")
    plan = plan_of(project, data=data)
    last = {variant.name: variant.last for variant in plan.variants}
    assert not trusting.is_confined(last["int8"], plan)  # it calibrates
    assert trusting.is_confined(last["ov"], plan)
    assert trusting.brings_python(plan.recipe)
    plain = plan.variants[0]
    made = Artifact("k", Format.ONNX, project.folder, "fp32", 1, "d")
    assert not trusting.measured_as(made, plain, plan, trust=False).foreign


@pytest.mark.slow
def test_a_metric_of_the_users_own_leaves_free_what_judges(project):
    (project.folder / "metric.py").write_text("def metric(samples): return 1.0\n")
    data = DATA.replace("metric: top1", "metric: 'python:metric.py:metric'")
    assert trusting.brings_python(plan_of(project, data=data).recipe)
    assert not trusting.brings_python(plan_of(project).recipe)


@pytest.mark.parametrize("format", list(Format))
def test_what_is_code_itself_is_never_confined(format, tmp_path):
    made = Artifact("k", format, tmp_path, "fp32", 1, "d")
    opened = trusting.opened_as(made, from_file=True, trust=True)
    code = format in ("torch", "aoti", "tensorrt", "tensorrt_rtx")
    assert (opened.foreign, opened.trusted) == (not code, True)
    assert not trusting.opened_as(made, from_file=False, trust=False).foreign


def test_a_runner_that_compiles_is_left_free(project):
    from optcli.runners import find

    assert find("torch")(compile=True).starts_programs()
    assert find("torch")(compile="max-autotune").starts_programs()
    assert not find("torch")().starts_programs()
    assert not find("onnxruntime")().starts_programs()


@pytest.mark.parametrize(
    ("made_by", "expected"),
    [
        ([{"kind": "onnx"}, {"step": "to_openvino"}], True),
        ([{"kind": "exported"}], True),
        ([{"kind": "torchvision"}], False),
        ([{"kind": "of a later optcli"}], False),
        ([{}], False),
        ([], False),
    ],
)
def test_what_an_artifact_began_as(made_by, expected):
    assert trusting.is_from_file(made_by) is expected


def test_torchscript_without_a_whole_wall_wants_trust(project, monkeypatch):
    (project.folder / "model.pt").write_bytes(b"x")
    head = HEAD.replace("onnx:model.onnx", "torchscript:model.pt")
    plan = plan_of(project, "  plain: []\n", head, data="")
    walls = {whole: confinement.Walls(files=whole, network=True) for whole in (True, False)}
    monkeypatch.setattr(confinement, "available", lambda: walls[False])
    with pytest.raises(TrustError, match="cannot confine") as failure:
        trusting.require_wall(plan, trust=False)
    assert "--trust" in failure.value.hint
    trusting.require_wall(plan, trust=True)
    monkeypatch.setattr(confinement, "available", lambda: walls[True])
    trusting.require_wall(plan, trust=False)


def test_a_recipe_cannot_say_that_its_model_is_trusted(project):
    from optcli.errors import RecipeError

    for said in ('model: {source: "onnx:model.onnx", trust: true}', "trust: true"):
        head = HEAD.replace('model: {source: "onnx:model.onnx"}', said)
        project.recipe("  plain: []\n", head=head)
        with pytest.raises(RecipeError):
            planned(project.folder / "recipe.yaml", Store(project.store), (), ())


@pytest.mark.long
@pytest.mark.slow
def test_what_trust_has_built_is_marked_and_nobody_else_opens_it_silently(
    project, monkeypatch, unmeasured
):
    """The key is the same with and without; what is kept says of itself what it is."""
    import torch
    from hostile_archives import members, with_program, written

    from optcli.models.formats import exported as exported_format

    library = project.folder / "optcli_tests_build.py"
    library.write_text(
        "import torch\nmade = torch.library.Library('optcli_tests_build', 'DEF')\n"
        "made.define('double(Tensor self) -> Tensor')\n"
        "made.impl('double', lambda x: x * 2, 'CPU')\n"
        "made.impl('double', lambda x: torch.empty_like(x), 'Meta')\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(project.folder))
    shapes = ({0: torch.export.Dim("batch", min=1, max=4)},)
    program = torch.export.export(torch.nn.ReLU(), (torch.ones(2, 3, 4, 4),), dynamic_shapes=shapes)
    exported_format.save(program, project.folder)

    def change(graph):
        node = graph["graph_module"]["graph"]["nodes"][0]
        node["target"] = "torch.ops.optcli_tests_build.double.default"

    path = project.folder / exported_format.FILE
    written(path, with_program(members(path), change))
    head = HEAD.replace("onnx:model.onnx", f"exported:{exported_format.FILE}")
    project.recipe("  plain: []\n", head=head)
    with pytest.raises(TrustError, match="opening this exported program could run code") as failure:
        project.build()
    assert "--trust" in failure.value.hint
    report = project.build(trust=True)
    assert report.variants["plain"].status == "built"
    about = json.loads((project.artifacts / "tiny" / "plain" / "artifact.json").read_text())
    assert "optcli_tests_build.double" in about["facts"]["unproven"][0]
    with pytest.raises(TrustError, match="made with --trust") as failure:
        project.build()
    assert "--trust" in failure.value.hint
    again = project.build(trust=True)
    assert again.variants["plain"].status == "cached"
