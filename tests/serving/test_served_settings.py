"""A bundle that was edited or damaged is named before a server starts."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from ruamel.yaml import YAML
from small_bundles import bundled, sealed_plan
from small_variants import IMAGE, onnx_model, variant

from optcli import cli
from optcli.artifact import Format
from optcli.errors import InputError, UsageError
from optcli.serving import running, served_settings
from optcli.serving.bundle import CONFIG, read
from optcli.serving.loadtest import payloads

pytestmark = pytest.mark.slow


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


def changed(folder: Path, change: object) -> None:
    yaml = YAML()
    content = yaml.load((folder / CONFIG).read_text())
    change(content)  # type: ignore[operator]
    with (folder / CONFIG).open("w") as stream:
        yaml.dump(content, stream)


def user_config(content: dict) -> dict:
    return content["applications"][0]["deployments"][1]["user_config"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda all: user_config(all).update(max_batch_size=0), "user_config of Model: max_batch_size"),
        (lambda all: user_config(all).update(batch_wait_timeout_s="10ms"), "batch_wait_timeout_s"),
        (lambda all: user_config(all).pop("adaptive_wait"), "adaptive_wait: Field required"),
        (lambda all: all["applications"][0]["deployments"].pop(), "no deployment Model"),
        (lambda all: all["applications"][0].update(import_path="nonsense"), "import_path"),
        (lambda all: all["applications"][0].update(import_path="nope:app"), "the module 'nope'"),
        (lambda all: all.pop("applications"), "no http_options or no applications"),
        (lambda all: all.update(http_options=8000), "no http_options or no applications"),
    ],
)
def test_a_wrong_setting_is_named(folder, change, said, capsys):
    changed(folder, change)
    for verb in (["serve", str(folder)], ["loadtest", str(folder)]):
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
    served_settings.require_whole(out, read(out))
    changed(out, lambda all: user_config(all).update(max_batch_size=0))
    assert cli.run(["serve", str(out)]) == 2
    assert "user_config of Model-high: max_batch_size" in capsys.readouterr().err
    changed(out, lambda all: all["applications"][0]["deployments"].pop())
    assert cli.run(["serve", str(out)]) == 2
    assert "no deployment Model-low" in capsys.readouterr().err


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
    assert cli.run(["serve", str(folder)]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("name", ["launch.py", "app.py", "model.py", CONFIG, "model/model.onnx"])
def test_a_file_that_is_gone_is_named(folder, name, capsys):
    (folder / name).unlink()
    assert cli.run(["serve", str(folder)]) == 2
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


def test_a_port_that_a_stopped_server_had_is_told_from_one_that_is_taken(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(UsageError, match="Address already in use") as caught:
            running._free_port("127.0.0.1", port)
        assert caught.value.hint == "name another --port, or a --host of this machine"
        # Connections that are closing hold a port as a listener does, and nobody answers there.
        monkeypatch.setattr(running, "_listens", lambda *_: False)
        with pytest.raises(UsageError, match="Address already in use") as caught:
            running._free_port("127.0.0.1", port)
        assert "wait a minute" in caught.value.hint
    with pytest.raises(UsageError, match="cannot listen there") as caught:
        running._free_port("10.255.255.254", 8000)
    assert "a --host of this machine" in caught.value.hint
