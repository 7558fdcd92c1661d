"""What `--cache` takes, and what a bundle is told of it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from copied_modules import load
from small_variants import IMAGE, variant

from optcli.artifact import Format
from optcli.errors import UsageError
from optcli.pipeline.model_files.built_variant import BuiltVariant
from optcli.serving.deploy import extras


@pytest.mark.parametrize(
    "place",
    ["memory", "redis://127.0.0.1:6379/0", "rediss://cache.example", "unix:///run/redis.sock?db=1"],
)
def test_places_of_a_cache(tmp_path: Path, place: str) -> None:
    one = variant(tmp_path, Format.ONNX, IMAGE)
    (tmp_path / extras.CACHE_FILE).write_bytes(extras.cache_file(place, one, 5.0))
    settings = json.loads((tmp_path / "cache.json").read_text())
    assert (settings["place"], settings["ttl_s"]) == (place, 5.0)
    server = SimpleNamespace(metrics=SimpleNamespace(of=lambda *_: None), outputs=None)
    load("cache").extend(server, tmp_path)
    assert server.cache.model == settings["model"]


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("", "'' is no cache"),
        ("redis", "'redis' is no cache"),
        ("memcached://host", "is no cache"),
        ("redis://", "is no cache"),
        ("redis://host:port", "is no cache"),
        ("redis://host:0", "is no cache"),
        ("unix://", "is no cache"),
        ("redis://[::1", "is no cache"),
        ("redis://ann:secret@host", "the URL has a password"),
        ("unix:///run/redis.sock?password=secret", "the URL has a password"),
        ("redis://ann:secret@host:port", "'host:port' is no cache"),
    ],
)
def test_what_is_no_place_of_a_cache(place: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        extras.checked_place(place)
    assert caught.value.place == "--cache"
    assert "secret" not in str(caught.value)
    assert "redis://" in caught.value.hint or "CACHE_URL" in caught.value.hint


def test_what_decides_an_answer_decides_the_keys(tmp_path: Path) -> None:
    one = variant(tmp_path, Format.ONNX, IMAGE)

    def model(built: BuiltVariant) -> str:
        return str(json.loads(extras.cache_file("memory", built, 5.0))["model"])

    other = replace(one, artifact=replace(one.artifact, digest="other"))
    threads = replace(one, options={"threads": 2})
    runner = replace(one, runner_name="openvino")
    assert len({model(one), model(other), model(threads), model(runner)}) == 4
    assert model(one) == model(replace(one, name="renamed"))
