"""`--remote-store s3://...` and the cache verbs on a real S3 server."""

from __future__ import annotations

import json

import pytest
from s3_server import Bucket

from optcli.store import Store
from optcli.store.remote import manifest

pytestmark = pytest.mark.slow


@pytest.fixture
def shared(place, optcli, s3, monkeypatch, tmp_path) -> Bucket:
    """What the project's build uploaded; the store of this machine is empty."""
    monkeypatch.setenv("OPTCLI_REMOTE_STORE", s3.url)
    said = optcli("build", "recipe.yaml")
    assert said.code == 0, said.err
    assert "remote store" not in said.err
    monkeypatch.setenv("OPTCLI_STORE", str(tmp_path / "elsewhere"))
    return s3


def test_it_is_listed_and_says_why_and_a_build_elsewhere_makes_no_step(shared, optcli, tmp_path):
    said = optcli("cache", "ls", "--remote")
    assert f"MB, in {shared.url}" in said.out
    rows = json.loads(optcli("cache", "ls", "--remote", "--kind", "artifact", "--json").out)
    assert [row["kind"] for row in rows] == ["artifact", "artifact"]
    said = optcli("cache", "why", "recipe.yaml", "--remote")
    assert "  remote  source onnx" in said.out
    assert "to do" not in said.out
    assert "seed: 0 -> 9" in optcli("cache", "why", "recipe.yaml", "--remote", "--set", "seed=9").out
    assert not list(Store(tmp_path / "elsewhere").entries("artifact"))
    said = optcli("build", "recipe.yaml")
    assert said.code == 0, said.err
    steps = {line.split("  (")[0] for line in said.err.splitlines() if line.startswith("  built")}
    assert steps <= {"  built   latency"}
    assert "remote store" not in said.err


def test_it_is_verified_and_repaired_and_made_smaller(shared, optcli):
    before = shared.paths()
    said = optcli("cache", "gc", "--remote", "--max-size", "0KB", "--dry-run")
    assert "would remove artifact" in said.out
    assert shared.paths() == before
    assert optcli("cache", "gc", "--remote", "--older-than", "1d").code == 0
    assert shared.paths() == before
    assert optcli("cache", "verify", "--remote").code == 0
    # Of an entry with one file: the objects of a removed one stay for a while, as if being uploaded.
    rows = json.loads(optcli("cache", "ls", "--remote", "--kind", "artifact", "--json").out)
    (record,) = (json.loads(shared.read(f"v1/entries/artifact/{row['key']}.json")) for row in rows[:1])
    ((_, content),) = record["entry"]["contents"].values()
    (place,) = (each for each in shared.below(manifest.OBJECTS) if each.endswith(content))
    shared.write(place, b"damaged")
    said = optcli("cache", "verify", "--remote")
    assert said.code == 4
    assert f"its object {place.rpartition('/')[2][:12]} has not the content" in said.out
    assert optcli("cache", "verify", "--remote", "--repair", "--remote-readonly").code == 2
    assert optcli("cache", "verify", "--remote", "--repair").code == 0
    assert optcli("cache", "verify", "--remote").code == 0
    assert place not in shared.paths()
    assert optcli("cache", "gc", "--remote", "--max-size", "0KB").code == 0
    assert shared.below(manifest.OBJECTS) == []


@pytest.mark.long
def test_a_bucket_that_is_not_there_is_one_warning_of_a_build_and_an_error_of_the_cache(
    place, optcli, s3, monkeypatch, tmp_path
):
    monkeypatch.setenv("OPTCLI_STORE", str(tmp_path / "elsewhere"))
    url = "s3://no-such-bucket-of-anybody/prefix"
    said = optcli("build", "recipe.yaml", "--remote-store", url)
    assert said.code == 0, said.err
    assert said.err.count("remote store:") == 1
    assert f"{url}: FileNotFoundError: The specified bucket does not exist" in said.err
    said = optcli("cache", "ls", "--remote", "--remote-store", url)
    assert said.code == 4
    assert "bucket does not exist" in said.err


@pytest.mark.long
def test_wrong_credentials_are_one_warning_of_a_build_and_an_error_of_the_cache(
    place, optcli, own_s3, monkeypatch, tmp_path
):
    monkeypatch.setenv("OPTCLI_STORE", str(tmp_path / "elsewhere"))
    own_s3.server.refuse()
    said = optcli("build", "recipe.yaml", "--remote-store", own_s3.url)
    assert said.code == 0, said.err
    assert said.err.count("remote store:") == 1
    assert "AWS Access Key Id" in said.err
    said = optcli("cache", "verify", "--remote", "--remote-store", own_s3.url)
    assert said.code == 4
    assert "AWS Access Key Id" in said.err
    assert "your access to it" in said.err
