"""A bundle that was edited or damaged is named before a server starts."""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import pytest
import small_bundles
from ruamel.yaml import YAML
from small_bundles import bundled, sealed_plan
from small_variants import IMAGE, onnx_model, variant

from optcli import cli
from optcli.artifact import Format
from optcli.errors import InputError, UsageError
from optcli.observer import Silent
from optcli.results.loadtest import Served
from optcli.serving import bundle, running
from optcli.serving.bundle import CONFIG, read
from optcli.serving.loadtest import opening, payloads
from optcli.serving.loadtest.load_options import Options
from optcli.serving.running import Running

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("hurried_plans")]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("written")
    onnx_model(folder / "model", {"image": ["batch", 3, 4, 4]})
    bundled(variant(folder / "model", Format.ONNX, IMAGE), sealed_plan(), folder / "out")
    files = [path for path in (folder / "out").rglob("*") if path.is_file()]
    return {path.relative_to(folder / "out").as_posix(): path.read_bytes() for path in files}


@pytest.fixture
def folder(written: dict[str, bytes], tmp_path: Path) -> Path:
    for name, content in written.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)
    return tmp_path


@pytest.fixture
def started(folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable:
    """The bundle as a load test opens it, without its server; `variables` are those of the server."""

    def run(*_: object, variables: dict[str, str], **__: object) -> AbstractContextManager[Running]:
        begin.variables = variables
        return nullcontext(Running("http://x", ()))

    def begin(**options: object) -> AbstractContextManager[opening.Endpoint]:
        return opening.started_bundle(folder, Options(**options), tmp_path / "log", tmp_path, Silent())

    described = opening.Endpoint(Served(url="http://x", model="small"), inputs=(), outputs=())
    monkeypatch.setattr(opening, "running", run)
    monkeypatch.setattr(opening.endpoint, "asked", lambda *_: described)
    return begin


def changed(folder: Path, change: object) -> None:
    yaml = YAML()
    content = yaml.load((folder / CONFIG).read_text())
    change(content)  # type: ignore[operator]
    with (folder / CONFIG).open("w") as stream:
        yaml.dump(content, stream)


def user_config(content: dict) -> dict:
    return content["applications"][0]["deployments"][0]["user_config"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda all: user_config(all).update(max_batch_size=0), "user_config of Model: max_batch_size"),
        (lambda all: user_config(all).update(batch_wait_timeout_s="10ms"), "batch_wait_timeout_s"),
        (lambda all: user_config(all).pop("deadline_ms"), "deadline_ms: Field required"),
        (lambda all: all["applications"][0]["deployments"].pop(), "no deployment Model"),
        (lambda all: all["applications"][0].update(import_path="nonsense"), "import_path"),
        (lambda all: all["applications"][0].update(import_path="nope:app"), "the module 'nope'"),
        (lambda all: all.pop("applications"), "no http_options or no applications"),
        (lambda all: all.update(http_options=8000), "no http_options or no applications"),
    ],
)
def test_a_wrong_setting_is_named(folder, change, said, capsys):
    changed(folder, change)
    for verb in (["serve", str(folder), "--trust"], ["loadtest", str(folder), "--trust"]):
        assert cli.run(verb) == 2
        err = capsys.readouterr().err
        assert said in err
        assert CONFIG in err
        assert "hint: correct it, or deploy again" in err
        assert "Traceback" not in err


def test_each_priority_has_settings_of_its_own(tmp_path, capsys):
    onnx_model(tmp_path / "model", {"image": ["batch", 3, 4, 4]})
    plan = sealed_plan(priorities={"high": 0.25, "low": 0.75})
    out = tmp_path / "bundle"
    bundled(variant(tmp_path / "model", Format.ONNX, IMAGE), plan, out)
    bundle.require_whole(out, read(out))
    changed(out, lambda all: user_config(all).update(max_batch_size=0))
    assert cli.run(["serve", str(out), "--trust"]) == 2
    assert "user_config of Model: max_batch_size" in capsys.readouterr().err
    changed(out, lambda all: all["applications"].pop(0))
    assert cli.run(["serve", str(out), "--trust"]) == 2
    assert "no application with the route_prefix /high" in capsys.readouterr().err


def test_what_was_deployed_is_read_back_as_it_was(folder):
    made = read(folder)
    found = bundle.as_configured(folder, made)
    assert found.wait_ms == pytest.approx(made.wait_ms)
    assert found.model_copy(update={"wait_ms": made.wait_ms}) == made


@pytest.mark.parametrize(
    ("cache", "options", "url"),
    [("memory", {}, "off"), ("memory", {"with_cache": True}, None), (None, {}, None)],
)
def test_a_load_test_switches_the_cache_off_unless_told(folder, started, cache, options, url):
    small_bundles.changed(folder, cache=cache)
    with started(**options):
        pass
    assert started.variables.get("CACHE_URL") == url


def test_edited_settings_are_those_that_a_load_test_predicts_with(folder, started):
    edited = {"max_batch_size": 3, "batch_wait_timeout_s": 0.0005}
    changed(folder, lambda all: user_config(all).update(edited))
    changed(folder, lambda all: all["applications"][0]["deployments"][0].update(num_replicas=5))
    with started() as found:
        assert (found.served.batch, found.served.wait_ms, found.served.instances) == (3, 0.5, 5)


def test_edited_settings_of_a_priority_are_its_own(tmp_path):
    onnx_model(tmp_path / "model", {"image": ["batch", 3, 4, 4]})
    plan = sealed_plan(priorities={"high": 0.25, "low": 0.75})
    out = tmp_path / "bundle"
    bundled(variant(tmp_path / "model", Format.ONNX, IMAGE), plan, out)
    made = read(out)
    changed(out, lambda all: user_config(all).update(max_batch_size=3))
    changed(out, lambda all: all["applications"][0]["deployments"][0].update(num_replicas=5))
    found = bundle.as_configured(out, made)
    high, low = found.priorities
    assert (high.largest_batch, high.instances) == (3, 5)
    assert (low.largest_batch, low.instances) == (
        made.priorities[1].largest_batch,
        made.priorities[1].instances,
    )
    assert (found.largest_batch, found.instances) == (low.largest_batch, 5 + low.instances)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"a: [1", "it is no YAML in line"),
        (b"\xff\xfe\x00", "it cannot be read"),
        (b"", "wanted a mapping of keys"),
        (b"- 1", "wanted a mapping of keys"),
    ],
)
def test_a_text_that_is_no_settings(folder, text, said, capsys):
    (folder / CONFIG).write_bytes(text)
    assert cli.run(["serve", str(folder), "--trust"]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("name", ["launch.py", "app.py", "pages.json", CONFIG, "model/model.onnx"])
def test_a_file_that_is_gone_is_named(folder, name, capsys):
    (folder / name).unlink()
    assert cli.run(["serve", str(folder), "--trust"]) == 2
    assert f"the bundle has no {name}" in capsys.readouterr().err


def test_what_reads_the_samples_names_a_damaged_file(folder):
    for content in (b"", b"PK\x03\x04", b"no npz"):
        (folder / "samples.npz").write_bytes(content)
        with pytest.raises(InputError, match="the arrays cannot be read"):
            payloads._read(folder / "samples.npz")


def test_of_what_a_server_says_the_end_of_the_last_traceback_is_told():
    said = [
        "Model: DeploymentStatus.UNHEALTHY: it failed 3 times. Error:",
        '  File "app.py", line 3, in __init__',
        "    model.Model()",
        "    ^^^^^",
        "ValueError: no model",
        "",
        "Failed to update the deployments ['Model'].",
    ]
    assert running._cause(said) == "ValueError: no model"
    assert running._cause(["all is well"]) is None


def test_a_port_that_is_taken_is_said():
    with (
        socket.create_server(("127.0.0.1", 0)) as other,
        pytest.raises(UsageError, match="Address already in use") as caught,
    ):
        running._free_port("127.0.0.1", other.getsockname()[1])
    assert caught.value.hint == "name another --port, or a --host of this machine"
    with pytest.raises(UsageError, match="cannot listen there"):
        running._free_port("10.255.255.254", 8000)
