"""Images that lie on a real S3 server, and answers that are written there."""

from __future__ import annotations

import io
import json
from typing import Any

import numpy as np
import pytest
from PIL import Image
from s3_server import Bucket
from tiny_project import DATA, Project

from optcli.errors import InputError, StoreError, UsageError
from optcli.results import Report
from optcli.results.serving import Inference
from optcli.serving.inference import InferenceSettings, infer
from optcli.serving.inference.listing import listing
from optcli.serving.inference.output import Output
from optcli.serving.prediction import storage
from optcli.serving.prediction.storage import MANIFEST, recorded
from optcli.store import Store

pytestmark = pytest.mark.slow

COUNT = 12


def stored(bucket: Bucket) -> None:
    """Images, the last of which is broken."""
    generator = np.random.default_rng(5)
    for index in range(COUNT):
        content = io.BytesIO()
        pixels = generator.integers(0, 256, (4, 4, 3), np.uint8)
        Image.fromarray(pixels).save(content, "png")
        broken = index == COUNT - 1
        path = f"in/{'ab'[index % 2]}/{index:03d}.png"
        bucket.write(path, b"no image" if broken else content.getvalue())


def run(project: Project, bucket: Bucket, **options: Any) -> Inference:
    path = project.artifacts / "tiny" / "report.json"
    return infer(
        "plain",
        Report.load(path),
        path,
        f"{bucket.url}/in",
        f"{bucket.url}/out",
        settings=InferenceSettings(per_shard=5, batch_size=4, form="jsonl", **options),
        store=Store(project.store),
    )


def rows(bucket: Bucket, ending: str) -> list[dict[str, Any]]:
    return [
        json.loads(line)
        for path in bucket.below("out")
        if path.endswith(ending)
        for line in bucket.read(path).splitlines()
    ]


@pytest.mark.long
def test_all_are_answered_and_a_run_goes_on_with_what_is_missing(project: Project, s3: Bucket) -> None:
    project.recipe("  plain: []\n", data=DATA)
    project.build()
    stored(s3)
    s3.write("out/", b"")  # as people make folders there
    found = run(project, s3)
    assert (found.images, found.answered, found.failed, found.shards) == (COUNT, COUNT - 1, 1, 3)
    before = {path: s3.read(path) for path in s3.below("out")}
    ids = [row["id"] for row in rows(s3, ".jsonl") if "label" in row]
    assert len(set(ids)) == len(ids) == COUNT - 1
    assert [row["id"] for row in rows(s3, ".errors.jsonl")] == ["b/011.png"]
    assert len(before) == 1 + 3 + 1 + 1, "the folder, answers, errors, the manifest: nothing else"
    again = run(project, s3)
    assert (again.answered, again.shards_before) == (0, 3)
    missing = next(path for path in before if path.endswith(".jsonl") and "errors" not in path)
    s3.remove(missing)
    assert run(project, s3).shards_before == 2
    assert {path: s3.read(path) for path in s3.below("out")} == before


def test_what_others_write_is_seen_at_once(s3: Bucket) -> None:
    stored(s3)
    place = storage.place_of(f"{s3.url}/in/a")
    assert len(place.names()) == 6
    s3.write("in/a/more.png", b"more")
    assert "more.png" in place.names()
    assert listing(f"{s3.url}/in", 5).images == COUNT + 1


def test_no_bucket_is_made_for_answers(s3: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "_PAUSE_S", 0.0)
    stored(s3)
    out = Output("s3://no-such-bucket-of-anybody/out", "jsonl", {"artifact": "a"}, ("classes",))
    with pytest.raises(StoreError, match="bucket does not exist"):
        out.begin(listing(f"{s3.url}/in", 5))
    names = [each["Name"] for each in s3.server.client.list_buckets()["Buckets"]]
    assert "no-such-bucket-of-anybody" not in names


def test_what_cannot_be_read_is_an_error_that_says_so(
    own_s3: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage, "_PAUSE_S", 0.0)
    stored(own_s3)
    with pytest.raises(UsageError, match="no such file or folder"):
        listing(f"{own_s3.url}/nothing", 5)
    own_s3.server.refuse()
    with pytest.raises(InputError, match="cannot be read"):
        listing(f"{own_s3.url}/in", 5)
    with pytest.raises(InputError, match=f"{MANIFEST} cannot be read"):
        recorded(f"{own_s3.url}/out")
    own_s3.server.kill()
    with pytest.raises(InputError, match="cannot be read") as caught:
        listing(f"{own_s3.url}/in", 5)
    assert "the network" in caught.value.hint
