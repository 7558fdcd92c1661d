"""`--remote-store` on the command line, and the cache verbs for a remote store."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from commands import optcli_process

from optcli.store import Store


@pytest.fixture
def url(place, optcli, monkeypatch) -> str:
    """A remote store that has what the project's build made."""
    url = f"file://{place.folder.parent}/remote"
    said = optcli("build", "recipe.yaml", "--remote-store", url)
    assert said.code == 0, said.err
    return url


@pytest.fixture
def elsewhere(url, place, tmp_path, monkeypatch) -> Path:
    """The same project as on another machine: its store is empty, and it knows the remote store."""
    monkeypatch.setenv("OPTCLI_REMOTE_STORE", url)
    monkeypatch.setenv("OPTCLI_STORE", str(tmp_path / "elsewhere"))
    return tmp_path / "elsewhere"


def objects(place) -> list[Path]:
    folder = place.folder.parent / "remote/v1/objects"
    return sorted(path for path in folder.rglob("*") if path.is_file())


@pytest.mark.slow
def test_a_build_elsewhere_makes_no_step(elsewhere, optcli):
    said = optcli("build", "recipe.yaml")
    assert said.code == 0, said.err
    steps = {line.split("  (")[0] for line in said.err.splitlines() if line.startswith("  built")}
    assert steps <= {"  built   latency"}


@pytest.mark.slow
def test_a_preview_elsewhere_says_what_is_remote(elsewhere, optcli):
    said = optcli("build", "recipe.yaml", "--dry-run")
    assert "  remote  source onnx" in said.out
    assert "to do" not in said.out
    said = optcli("cache", "why", "recipe.yaml", "--set", "seed=9")
    assert "seed: 0 -> 9" in said.out
    assert not list(Store(elsewhere).entries("artifact"))


@pytest.mark.slow
def test_why_asks_the_remote_store_alone(url, place, optcli, monkeypatch):
    said = optcli("cache", "why", "recipe.yaml", "--remote", "--remote-store", url)
    assert "cached" not in said.out
    assert "  remote  source onnx" in said.out
    said = optcli("cache", "why", "recipe.yaml", "--remote-store", f"{url}-empty", "--remote")
    assert "is new: the store has no result of this step" in said.out


@pytest.mark.slow
def test_it_is_listed(elsewhere, url, optcli):
    said = optcli("cache", "ls", "--remote")
    assert f"MB, in {url}" in said.out
    assert "./fakes.py:Copy" in said.out
    rows = json.loads(optcli("cache", "ls", "--remote", "--kind", "artifact", "--json").out)
    assert [row["kind"] for row in rows] == ["artifact", "artifact"]
    assert optcli("cache", "ls", "--json").out.strip() == "[]"


@pytest.mark.slow
def test_it_is_verified_and_repaired(elsewhere, url, place, optcli):
    assert optcli("cache", "verify", "--remote").code == 0
    objects(place)[0].write_bytes(b"damaged")
    said = optcli("cache", "verify", "--remote")
    assert said.code == 4
    assert "damaged: " in said.out
    assert "its object" in said.out
    assert optcli("cache", "verify", "--remote", "--repair").code == 0
    assert optcli("cache", "verify", "--remote").code == 0


@pytest.mark.slow
def test_it_is_made_smaller(elsewhere, url, place, optcli):
    before = objects(place)
    said = optcli("cache", "gc", "--remote", "--max-size", "0KB", "--dry-run")
    assert "would remove artifact" in said.out
    assert objects(place) == before
    assert optcli("cache", "gc", "--remote", "--max-size", "0KB").code == 0
    assert objects(place) == []
    assert ", 0.00 MB, in file://" in optcli("cache", "ls", "--remote").out


@pytest.mark.slow
def test_what_removes_something_there_needs_one_that_is_written(elsewhere, optcli):
    for line in (
        "cache gc --remote --remote-readonly",
        "cache verify --remote --repair --remote-readonly",
    ):
        said = optcli(*line.split())
        assert said.code == 2
        assert "the remote store is read-only" in said.err
    assert optcli("cache", "gc", "--remote", "--remote-readonly", "--dry-run").code == 0
    assert optcli("cache", "verify", "--remote", "--remote-readonly").code == 0


@pytest.mark.parametrize("verb", ["ls", "verify", "gc", "why recipe.yaml"])
def test_without_one_that_is_named_it_says_how(place, optcli, verb):
    said = optcli("cache", *verb.split(), "--remote")
    assert said.code == 2
    assert "no remote store is named" in said.err
    assert "OPTCLI_REMOTE_STORE" in said.err


@pytest.mark.parametrize(
    "verb", ["build recipe.yaml", "cache ls --remote", "gate recipe.yaml --baseline x"]
)
def test_what_is_no_url_is_an_error(place, optcli, verb):
    said = optcli(*verb.split(), "--remote-store", "bucket/prefix")
    assert said.code == 2
    assert "--remote-store: found 'bucket/prefix', wanted the URL of a remote store" in said.err


def test_a_recipe_cannot_name_one(place, optcli):
    recipe = place.folder / "recipe.yaml"
    recipe.write_text(recipe.read_text() + "remote_store: file:///tmp/theirs\n")
    said = optcli("build", "recipe.yaml")
    assert said.code == 2
    assert "remote_store" in said.err


@pytest.mark.slow
def test_text_of_others_moves_no_cursor(elsewhere, place, optcli):
    from optcli.files.digest import of_value
    from optcli.store import key_of

    ingredients = {"step": "\x1b[2Jpwned\x07"}
    body = {
        "schema": 1,
        "kind": "artifact",
        "key": key_of(ingredients),
        "created": "2026",
        "digest": of_value([]),
        "size_bytes": 0,
        "contents": {},
        "record": {"format": "\x1b[31m"},
        "ingredients": ingredients,
    }
    there = place.folder.parent / "remote/v1/entries/artifact" / f"{key_of(ingredients)}.json"
    there.write_text(json.dumps({"seal": of_value(body), "entry": body}))
    said = optcli("cache", "ls", "--remote")
    assert "pwned" in said.out
    assert "\x1b" not in said.out


@pytest.mark.long
@pytest.mark.slow
def test_one_that_cannot_be_used_is_an_error_of_the_cache_verbs_alone(place, optcli):
    (place.folder / "file").write_text("no folder")
    url = f"file://{place.folder}/file/remote"
    said = optcli("cache", "ls", "--remote", "--remote-store", url)
    assert said.code == 4
    assert "the remote store cannot be used" in said.err
    said = optcli("build", "recipe.yaml", "--remote-store", url)
    assert said.code == 0
    assert said.err.count("remote store:") == 1


@pytest.mark.slow
def test_help_does_not_import_it(place):
    program = "build --help"
    said = optcli_process(*program.split(), folder=place.folder)
    assert "--remote-store URL" in said.out
    assert "OPTCLI_REMOTE_STORE" in said.out
