"""The parts of a build on Ray by themselves: no Ray is started here."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from needs import REPOSITORY
from tiny_project import DATA, Heard

from optcli import environment
from optcli.accuracy.evaluation import EvaluationRequest
from optcli.artifact import Artifact, Format
from optcli.errors import MissingError, UsageError
from optcli.files.digest import FileDigests, of_bytes
from optcli.passes import Traits
from optcli.passes.quantize_nncf import QuantizeNncf
from optcli.pipeline import step
from optcli.pipeline.building import build
from optcli.pipeline.execute import BuildSettings
from optcli.pipeline.making import planned
from optcli.pipeline.messages import PassRequest
from optcli.pipeline.on_ray import cluster, maker, node, parcels
from optcli.pipeline.on_ray.cluster import Cluster, NoNodeError, Resources
from optcli.pipeline.on_ray.messages import NodeAnswer, NodeOrder, NodePart
from optcli.store import Store
from optcli.store.remote_place import RemotePlace
from optcli.workers import messages

USERS = '  plain: []\n  mine: ["./fakes.py:Calibrated"]\n  tuned: ["./fakes.py:Tuned"]\n'


@pytest.fixture
def steps(project, tmp_store):
    """The plan of a recipe with passes of the user's own, and its last steps by variant."""
    project.recipe(USERS, data=DATA)
    plan = planned(project.folder / "recipe.yaml", tmp_store, (), ())
    return plan, {variant.name: variant.last for variant in plan.variants}


def request(plan, step, folder: Path) -> PassRequest:
    nowhere = Artifact("k" * 64, Format.ONNX, folder, "fp32", 0, "", {})
    return PassRequest(
        step=step.name,
        inputs=plan.recipe.inputs,
        folder=folder,
        probe=None,
        threads=1,
        seed=0,
        batch_sizes=(1,),
        traits=step.traits,
        parent=nowhere,
        origin=nowhere,
        data={role: plan.recipe.data[role] for role in step.traits.uses},
    )


def made_of(plan, step):
    return {role: plan.data_roles[plan.role_keys[role]] for role in step.traits.uses}


def sent_of(request: PassRequest) -> parcels.Project:
    own = filter(None, [request.traits.reference])
    return parcels.project_of(request.folder, request.data, own, FileDigests())


def differences(plan, step, **changed):
    ingredients = {**step.ingredients, **changed}
    return node._step_differences(ingredients, made_of(plan, step), step.traits, FileDigests())


@pytest.mark.slow
def test_the_machine_that_planned_a_step_fits(steps):
    plan, last = steps
    for name in ("mine", "tuned"):
        assert differences(plan, last[name]) == ()


@pytest.mark.slow
def test_what_differs_is_named(steps, monkeypatch):
    plan, last = steps
    (found,) = differences(plan, last["mine"], versions={"onnx": "0.1"})
    assert found == f"onnx {environment.version('onnx')}, wanted 0.1"
    (found,) = differences(plan, last["mine"], versions={"optcli_no_such_package": "1"})
    assert found == "optcli_no_such_package is not installed, wanted 1"
    code = {**last["mine"].ingredients["code"], "pipeline/step.py": "0" * 64, "gone.py": "1"}
    (found,) = differences(plan, last["mine"], code=code)
    assert "pipeline/step.py" in found
    assert "gone.py" in found
    monkeypatch.setattr(environment, "cpu", lambda: {"model": "Another", "flags": []})
    (found,) = differences(plan, last["tuned"])
    assert "its CPU is Another" in found
    monkeypatch.setattr(environment, "version", lambda name: "9.9")
    assert any(each.startswith("pillow 9.9") for each in differences(plan, last["mine"]))


@pytest.mark.slow
def test_a_device_that_a_pass_names_itself_is_compared(steps):
    _, last = steps
    own = QuantizeNncf()
    traits = Traits.of(own, "quantize_nncf")
    assert node._step_differences({"device": own.bound_to()}, {}, traits, FileDigests()) == ()
    (found,) = node._step_differences({"device": {"gpu": "H100"}}, {}, traits, FileDigests())
    assert found == "it is another device: gpu"
    users = last["tuned"].traits
    (found,) = node._step_differences({"device": {"gpu": "H100"}}, {}, users, FileDigests())
    assert "a pass of your own" in found


@pytest.mark.slow
def test_code_and_data_travel_by_content_and_are_the_same_there(steps, project, tmp_path):
    plan, last = steps
    step = last["mine"]
    sent = sent_of(request(plan, step, project.folder))
    contents = sent.contents()
    inside = {name.rpartition("project/")[2]: about for name, about in contents.items()}
    assert "fakes.py" in inside
    images = [about for name, about in inside.items() if name.endswith(".png")]
    assert len(images) == 12
    assert images.count((0, of_bytes(b""))) == 6, "of those that are not chosen the name alone"
    assert not any(name.startswith("/") for name in contents)

    mirror = tmp_path / "mirror"
    for name, (size, _) in contents.items():
        (mirror / name).parent.mkdir(parents=True, exist_ok=True)
        (mirror / name).write_bytes(Path("/", name).read_bytes() if size else b"")
    there = mirror / project.folder.relative_to("/")
    asked = request(plan, step, there)
    wanted = made_of(plan, step)
    assert node._project_differences(asked, step.ingredients, wanted, FileDigests()) == ()
    (there / "fakes.py").write_text("changed = True\n")
    (found,) = node._project_differences(asked, step.ingredients, {}, FileDigests())
    assert "fakes.py:Calibrated" in found
    read = next(path for path in there.rglob("*.png") if path.stat().st_size)
    read.write_bytes(b"another image")
    assert "the samples of calibration differ there" in node._project_differences(
        asked, {}, wanted, FileDigests()
    )


@pytest.mark.slow
def test_absolute_paths_of_data_are_found_below_another_folder(steps, project):
    plan, last = steps
    whole = request(plan, last["mine"], project.folder)
    settings = whole.data["calibration"].model_copy(
        update={"source": f"imagefolder:{project.folder}/images", "root": str(project.folder.parent)}
    )
    whole.data["calibration"] = settings
    sent = sent_of(whole).data["calibration"]
    assert (sent.source, sent.root) == ("imagefolder:images", "..")


def test_files_of_an_answer_stay_in_their_folder(tmp_path):
    remote = parcels.opened(f"file://{tmp_path}/remote", Store(tmp_path / "store"))
    for name in ("../out", "/etc/passwd", "a/../../b", ""):
        with pytest.raises(parcels.UnreachableError, match="cannot be the name"):
            parcels.receive(remote, {name: (1, "0" * 64)}, tmp_path)


def test_what_is_sent_is_fetched_once_and_compared(tmp_path):
    file = tmp_path / "model.onnx"
    file.write_bytes(b"a model")
    about = (7, of_bytes(b"a model"))
    store = Store(tmp_path / "store")
    remote = parcels.opened(f"file://{tmp_path}/remote", store)
    parcels.send(remote.connection, {file: about})
    entry = parcels.fetched(store, remote, {"model.onnx": about}, "folder")
    assert (entry.path / "model.onnx").read_bytes() == b"a model"
    assert (entry.path / "folder").is_dir()
    (object_,) = [path for path in (tmp_path / "remote").rglob("*") if path.is_file()]
    object_.write_bytes(b"a virus")
    assert parcels.fetched(store, remote, {"model.onnx": about}, "folder").key == entry.key
    with pytest.raises(parcels.UnreachableError, match="not the content"):
        parcels.fetched(Store(tmp_path / "other"), remote, {"model.onnx": about})
    with pytest.raises(parcels.UnreachableError, match="was changed"):
        parcels.send(remote.connection, {file: (7, "0" * 64)})


def order(steps, folder: Path, **changed) -> NodeOrder:
    plan, last = steps
    step = last["tuned"]
    given = {
        "key": step.key,
        "label": "tuned",
        "function": "optcli.pipeline.step:make_artifact",
        "request": request(plan, step, folder),
        "ingredients": step.ingredients,
        "made_of": {},
        "samples": {},
        "forked_after": None,
        "preload": (),
        "confined": False,
        "threads": 1,
        "timeout_s": 60.0,
        **changed,
    }
    return NodeOrder(**given)


@pytest.mark.slow
def test_an_order_survives_its_way_and_one_of_another_optcli_is_refused(steps, project):
    sent = order(steps, project.folder)
    record = messages.to_record(sent)
    assert messages.read(NodeOrder, record) == sent
    answer = node.carry_out({**record, "new": 1}, "a node")
    assert answer["unfit"] == ["its optcli does not understand the messages of this one"]
    assert answer["node"] == "a node"
    other = order(steps, project.folder, ingredients={"versions": {"onnx": "0.1"}})
    assert "wanted 0.1" in node.carry_out(messages.to_record(other), "a node")["unfit"][0]


@pytest.fixture
def part(steps, project):
    """A part of the evaluation of a variant, as a node gets it."""
    plan, _ = steps
    nowhere = Artifact("k" * 64, Format.ONNX, project.folder, "fp32", 0, "", {})
    settings = plan.recipe.data["evaluation"]
    asked = EvaluationRequest(
        inputs=plan.recipe.inputs,
        feeds=plan.recipe.inputs,
        data=settings,
        folder=project.folder,
        settings=plan.recipe.accuracy,
        artifact=nowhere,
        runner="onnxruntime",
        options={"threads": 1},
        out=project.folder / "out",
        job=1,
        jobs=3,
    )
    ingredients = {
        "code": {"pipeline/step.py": FileDigests().of(Path(step.__file__))},
        "versions": {"onnxruntime": environment.version("onnxruntime")},
        "cpu": environment.cpu(),
        "users": [],
    }
    samples = plan.role_keys["evaluation"]
    return NodePart(
        key="k", request=asked, ingredients=ingredients, samples=samples, references=(), timeout_s=60.0
    )


@pytest.mark.slow
def test_the_machine_that_planned_an_evaluation_fits(part):
    again = messages.read(NodePart, messages.to_record(part))
    assert again == part
    assert node._evaluation_differences(again, FileDigests()) == ()
    assert node._judging_differences(again, FileDigests()) == ()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"cpu": {"model": "another", "flags": []}}, "wanted another"),
        ({"versions": {"onnxruntime": "0.1"}}, "wanted 0.1"),
        ({"code": {"pipeline/step.py": "0" * 64}}, "pipeline/step.py"),
    ],
)
def test_what_would_evaluate_otherwise_is_named(part, changed, said):
    other = replace(part, ingredients={**part.ingredients, **changed})
    (found,) = node._evaluation_differences(other, FileDigests())
    assert said in found


@pytest.mark.slow
def test_other_samples_and_another_metric_are_named(part, project):
    other = replace(part, samples="0" * 64)
    assert node._judging_differences(other, FileDigests()) == (
        "the samples of evaluation differ there",
    )
    (project.folder / "metric.py").write_text("def metric(outputs, target, meta):\n    return 1\n")
    own = replace(part, references=("metric.py:metric",))
    (found,) = node._judging_differences(own, FileDigests())
    assert "metric.py:metric, or what it imports, differs there" in found
    gone = replace(part, references=("gone.py:metric",))
    (found,) = node._judging_differences(gone, FileDigests())
    assert "cannot be read there" in found


@pytest.mark.slow
def test_a_part_of_another_optcli_is_refused(part):
    record = {**messages.to_record(part), "more": 1}
    answer = messages.read(NodeAnswer, node.evaluate(record, "node"))
    assert "does not understand" in answer.unfit[0]
    record = messages.to_record(replace(part, ingredients={"cpu": {"model": "another"}}))
    answer = messages.read(NodeAnswer, node.evaluate(record, "node"))
    assert "wanted another" in answer.unfit[0]


def test_parts_are_as_many_as_nodes_have_room_for(monkeypatch):
    one = Cluster("local", lambda *_: None)
    monkeypatch.setattr(one, "connect", lambda: None)
    of = nodes({"CPU": 4.0}, {"CPU": 3.0}, {"CPU": 0.0})
    monkeypatch.setattr(cluster, "alive", lambda: of)
    assert [one.room_for(cores) for cores in (1, 2, 4, 8)] == [7, 3, 1, 1]
    monkeypatch.setattr(cluster, "alive", lambda: nodes({"CPU": 0.0}))
    assert one.room_for(1) == 0


def nodes(*resources: dict[str, float]) -> list[dict[str, object]]:
    return [
        {"NodeID": f"node{number}", "Alive": True, "Resources": each}
        for number, each in enumerate(resources)
    ]


def test_cores_are_those_that_the_largest_node_has(monkeypatch):
    there = nodes({"CPU": 2, "memory": 8e9}, {"CPU": 4, "memory": 1e9})
    monkeypatch.setattr(cluster, "alive", lambda: there)
    asked = Cluster("auto", lambda *_: None)
    assert asked._with_cores(Resources(1, 10**9, 0), []).cores == 1
    assert asked._with_cores(Resources(16, 10**9, 0), []).cores == 4
    assert asked._with_cores(Resources(16, 10**9, 0), ["node1"]).cores == 2
    with pytest.raises(NoNodeError, match=r"no node that fits has 1 cores, .* GB, 1 GPU"):
        asked._with_cores(Resources(1, 10**9, 1), [])
    with pytest.raises(NoNodeError, match="no node of the cluster fits"):
        asked._with_cores(Resources(1, 10**9, 0), ["node0", "node1"])
    asked.stop()
    with pytest.raises(Exception, match="interrupted"):
        asked._with_cores(Resources(1, 10**9, 0), [])


@pytest.mark.parametrize(
    ("address", "place", "said"),
    [
        ("ray://head:10001", None, "wanted auto, local or HOST:PORT"),
        ("auto", RemotePlace("s3://bucket/store", read_only=True), "--remote-readonly forbids"),
        ("auto", RemotePlace("memory://store"), "other machines cannot read memory://store"),
    ],
)
def test_what_could_not_work_is_refused_at_once(tmp_path, address, place, said):
    with pytest.raises(UsageError, match=said):
        maker.require(address, Store(tmp_path, place))


def test_without_ray_it_is_said_how_to_install_it(tmp_path, monkeypatch):
    monkeypatch.setattr(environment, "version", lambda name: None)
    with pytest.raises(MissingError) as caught:
        maker.require("local", Store(tmp_path))
    assert "ray[data]" in caught.value.hint


@pytest.mark.slow
def test_a_build_that_finds_all_does_not_start_ray(project, monkeypatch):
    project.recipe('  plain: []\n  a: ["./fakes.py:Copy"]\n')
    project.build()

    def refuse(*_):
        raise AssertionError("Ray was started")

    monkeypatch.setattr(cluster.ray_session, "started", refuse)
    heard = Heard()
    report = build(
        project.folder / "recipe.yaml",
        store=project.store,
        artifacts=project.artifacts,
        observer=heard,
        settings=BuildSettings(ray="local"),
    )
    assert {each.status for each in report.variants.values()} == {"cached"}


@pytest.mark.long
@pytest.mark.slow
def test_without_the_option_ray_is_never_imported(project):
    project.recipe('  plain: []\n  a: ["./fakes.py:Copy"]\n')
    program = (
        "import sys\n"
        "from optcli.pipeline.building import build\n"
        f"build('recipe.yaml', store=__import__('pathlib').Path({str(project.store)!r}),"
        f" artifacts=__import__('pathlib').Path({str(project.artifacts)!r}))\n"
        "assert 'ray' not in sys.modules\n"
        "assert not any(name.startswith('optcli.pipeline.on_ray') for name in sys.modules)\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program],
        cwd=project.folder,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 0, ended.stderr
