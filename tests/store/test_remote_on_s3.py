"""A remote store on a real S3 server, through s3fs."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from faulty_remote import QUICK, Admits, Machine, files_of, made
from s3_server import Bucket

from optcli.errors import StoreError
from optcli.store import Store, key_of
from optcli.store.remote import RemotePlace, manifest, upkeep

pytestmark = pytest.mark.slow

STEP = {"step": "export_onnx", "options": {"opset": 18}}
KEY = key_of(STEP)
MANIFEST = manifest.path_of("artifact", KEY)
# One that is sent from memory, and one that is sent from its file.
LARGE = bytes(range(256)) * (9 << 12)
FILES = {"model": b"graph", "weights": LARGE}


@pytest.fixture
def here(tmp_path: Path, s3: Bucket) -> Machine:
    return Machine(tmp_path / "here", s3.url)


@pytest.fixture
def there(tmp_path: Path, s3: Bucket) -> Machine:
    return Machine(tmp_path / "there", s3.url)


def object_of(bucket: Bucket, content: bytes) -> str:
    """Where a file lies."""
    (path,) = (each for each in bucket.below(manifest.OBJECTS) if bucket.read(each) == content)
    return path


class TestWhatTravels:
    def test_what_one_machine_made_another_one_finds(self, here, there, s3):
        (made_here,) = here.make(STEP, empty=b"", **FILES)
        found = there.find(STEP)
        assert files_of(found) == files_of(made_here) == {"empty": b"", **FILES}
        assert found.origin == s3.url
        assert (here.heard, there.heard) == ([], [])
        assert not there.store.verify()
        assert s3.below(manifest.ENTRIES) == [MANIFEST]
        assert len(s3.paths()) == 3, "nothing is left of the writing"

    def test_what_another_machine_uploads_is_seen_at_once(self, here, there):
        with there.connected():
            assert there.store.get("artifact", KEY, admission=Admits()) is None
            here.make(STEP)
            assert there.store.get("artifact", KEY, admission=Admits()) is not None

    def test_equal_files_and_entries_that_are_there_are_not_sent_again(self, here, there, s3):
        here.make(STEP, model=b"same", other=b"same")
        dates = {path: written(s3, path) for path in s3.paths()}
        assert len(dates) == 2
        there.make(STEP, model=b"same", other=b"same")
        assert {path: written(s3, path) for path in s3.paths()} == dates

    def test_a_read_only_one_is_read_and_not_written(self, here, s3, tmp_path):
        here.make(STEP)
        before = s3.paths()
        stranger = Machine(tmp_path / "stranger", s3.url, read_only=True)
        assert stranger.find(STEP) is not None
        stranger.make({"step": "mine"})
        assert s3.paths() == before
        assert stranger.heard == []

    def test_a_whole_bucket_may_be_one(self, s3, tmp_path):
        url = f"s3://{s3.name}"
        Machine(tmp_path / "here", url).make(STEP)
        assert Machine(tmp_path / "there", url).find(STEP) is not None

    def test_machines_that_write_one_key_at_once_leave_one_whole_entry(self, s3, tmp_path):
        machines = [Machine(tmp_path / f"m{number}", s3.url) for number in range(4)]
        start = threading.Barrier(len(machines))

        def work(machine: Machine, content: bytes) -> None:
            with machine.connected():
                start.wait()
                made(machine.store, STEP, model=content, other=content[::-1])

        threads = [
            threading.Thread(target=work, args=(machine, f"by {number}".encode()))
            for number, machine in enumerate(machines)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        found = files_of(Machine(tmp_path / "reader", s3.url).find(STEP))
        assert found["other"] == found["model"][::-1]
        assert [machine.heard for machine in machines] == [[]] * 4


def written(bucket: Bucket, path: str) -> object:
    found = bucket.server.client.head_object(Bucket=bucket.name, Key=f"some/prefix/{path}")
    return found["LastModified"], found["ETag"]


# Stops for good before it writes the object with a number, and says so.
KILLED = """
import sys, threading
from pathlib import Path
from faulty_remote import Limits, Machine, made
from optcli.store.remote.connection import RemoteFileSystem

root, url, stop = sys.argv[1:]
put, count = RemoteFileSystem._put, 0

def stopping(self, path, act, size_bytes):
    global count
    count += 1
    if count == int(stop):
        print("there", flush=True)
        threading.Event().wait()
    put(self, path, act, size_bytes)

RemoteFileSystem._put = stopping
machine = Machine(Path(root), url)
machine.limits = Limits(answer_s=1e6, finish_s=1e6)
with machine.connected():
    made(machine.store, {"step": "export_onnx", "options": {"opset": 18}}, model=b"graph", weights=b"1")
"""


# An object, and the manifest as the last of them.
@pytest.mark.parametrize("stop", [1, 3])
def test_of_an_upload_that_is_killed_nobody_sees_anything(here, there, s3, stop):
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(here.store.root), s3.url, str(stop)],
        stdout=subprocess.PIPE,
        text=True,
        env={"PYTHONPATH": ":".join(filter(None, sys.path)), **s3.server.variables},
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "there\n"
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert len(s3.paths()) == stop - 1
    assert there.find(STEP) is None
    assert there.heard == []
    with here.connected():  # the next build, of something else
        pass
    assert files_of(there.find(STEP)) == {"model": b"graph", "weights": b"1"}


class TestDamage:
    @pytest.mark.parametrize(
        ("name", "data"),
        [
            ("model", b"GRAPH"),
            ("model", None),
            ("weights", LARGE[: 8 << 20]),
            ("weights", LARGE[:-1] + b"?"),
        ],
    )
    def test_a_corrupted_object_is_refused_named_and_replaced(
        self, here, there, s3, tmp_path, name, data
    ):
        here.make(STEP, **FILES)
        path = object_of(s3, FILES[name])
        s3.remove(path) if data is None else s3.write(path, data)
        with there.connected():
            assert there.store.get("artifact", KEY, admission=Admits()) is None
            made(there.store, STEP, **FILES)
        (heard,) = there.heard
        digest = path.rpartition("/")[2][:12]
        assert f"{s3.url}: artifact {KEY[:12]} is refused: its object {digest}" in heard
        assert s3.read(path) == FILES[name]
        assert Machine(tmp_path / "third", s3.url).find(STEP) is not None

    def test_a_damaged_manifest_is_refused_and_replaced(self, here, there, s3):
        here.make(STEP)
        s3.write(MANIFEST, s3.read(MANIFEST)[:-20])
        assert there.find(STEP) is None
        assert "its manifest cannot be read" in there.heard[0]
        there.make(STEP)
        manifest.read(s3.read(MANIFEST), "artifact", KEY, there.store.root, s3.url)

    def test_it_is_listed_verified_and_repaired(self, here, s3):
        here.make(STEP, {"step": "another"}, model=b"graph", own=b"parts")
        with here.connected():
            remote = here.store.remote
            assert upkeep.damaged(remote, repair=False) == (2, [])
            s3.write(object_of(s3, b"parts"), b"xxxxx")
            s3.write(f"{manifest.ENTRIES}/artifact/readme.txt", b"somebody's")
            sound, damage = upkeep.damaged(remote, repair=True)
            assert (sound, len(damage)) == (0, 3)
            assert all(each.removed for each in damage)
            assert upkeep.damaged(remote, repair=False) == (0, [])
            assert [entry.key for _, entry in upkeep.entries(remote)[0]] == []
        assert s3.below(manifest.ENTRIES) == []

    def test_it_is_made_smaller_by_the_time_of_the_upload(self, here, s3):
        here.make(STEP, {"step": "another"}, model=b"graph")
        with here.connected():
            remote = here.store.remote
            listed, damage = upkeep.entries(remote)
            assert (len(listed), damage) == (2, [])
            assert all(file.written > 1e9 and file.size_bytes for file, _ in listed)
            assert upkeep.collect(remote, 3600.0, None, dry_run=False) == []
            removed = upkeep.collect(remote, None, 0, dry_run=False)
        assert sorted(each.kind for each in removed) == ["artifact", "artifact"]
        assert s3.paths() == []


class Killing(Admits):
    """Kills the server once the manifest of an entry has been read."""

    def __init__(self, bucket: Bucket) -> None:
        super().__init__()
        self.bucket = bucket

    def of_record(self, entry) -> None:
        self.bucket.server.kill()


class TestFaults:
    def test_one_that_vanishes_in_the_middle_of_a_fetch_costs_time_alone(self, own_s3, tmp_path):
        Machine(tmp_path / "here", own_s3.url).make(STEP, **FILES)
        there = Machine(tmp_path / "there", own_s3.url)
        with there.connected():
            assert there.store.get("artifact", KEY, admission=Killing(own_s3)) is None
            made(there.store, STEP)
            assert there.store.get("artifact", KEY, admission=Admits()) is not None
        (heard,) = there.heard
        assert heard.endswith("going on without the remote store")
        assert list((there.store.root / "work").iterdir()) == []
        assert not there.store.verify()

    def test_one_that_vanishes_before_an_upload_gets_it_from_the_next_build(self, own_s3, tmp_path):
        here = Machine(tmp_path / "here", own_s3.url)
        with here.connected():
            assert here.store.get("artifact", KEY, admission=Admits()) is None
            own_s3.server.kill()
            made(here.store, STEP)
        (heard,) = here.heard
        assert heard.endswith("going on without the remote store")
        (mark,) = (here.store.root / "remotes").glob("*/*")
        assert mark.read_text() == "pending"

    def test_wrong_credentials_are_told_once(self, own_s3, tmp_path):
        machine = Machine(tmp_path / "here", own_s3.url)
        own_s3.server.refuse()
        with machine.connected():
            for number in range(3):
                step = {"step": f"s{number}"}
                assert machine.store.get("artifact", key_of(step), admission=Admits()) is None
                made(machine.store, step)
        (heard,) = machine.heard
        assert heard.startswith(f"{own_s3.url}: PermissionError: ")
        assert "AWS Access Key Id" in heard
        own_s3.server.accept()
        assert own_s3.paths() == []

    def test_without_credentials_one_warning_says_so(self, s3, tmp_path, monkeypatch):
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            monkeypatch.delenv(name)
        machine = Machine(tmp_path / "here", s3.url)
        assert machine.find(STEP) is None
        machine.make(STEP)
        assert machine.find(STEP) is not None
        assert machine.heard
        assert all("credentials" in heard for heard in machine.heard)

    @pytest.mark.parametrize("read_only", [True, False])
    def test_a_bucket_that_is_not_there_is_told_once(self, s3, tmp_path, read_only):
        url = "s3://no-such-bucket-of-anybody/prefix"
        machine = Machine(tmp_path / "here", url, read_only=read_only)
        with machine.connected():
            for number in range(3):
                step = {"step": f"s{number}"}
                assert machine.store.get("artifact", key_of(step), admission=Admits()) is None
                made(machine.store, step)
        (heard,) = machine.heard
        assert "bucket does not exist" in heard
        assert heard.endswith("going on without the remote store")
        names = [each["Name"] for each in s3.server.client.list_buckets()["Buckets"]]
        assert "no-such-bucket-of-anybody" not in names, "none is made"

    def test_the_cache_verbs_say_that_there_is_no_bucket(self, s3, tmp_path):
        machine = Machine(tmp_path / "here", "s3://no-such-bucket-of-anybody/prefix")
        with machine.connected(), pytest.raises(StoreError, match="bucket does not exist"):
            upkeep.entries(machine.store.remote)

    def test_a_process_ends_quietly(self, s3, tmp_path):
        """Connections that are still open at its end are no news."""
        program = (
            "import sys; from pathlib import Path\n"
            "from faulty_remote import Machine\n"
            "machine = Machine(Path(sys.argv[1]), sys.argv[2])\n"
            "machine.make({'step': 'mine'}); print(machine.heard)"
        )
        done = subprocess.run(
            [sys.executable, "-c", program, str(tmp_path), s3.url],
            capture_output=True,
            text=True,
            check=True,
            env={"PYTHONPATH": ":".join(filter(None, sys.path)), **s3.server.variables},
        )
        assert (done.stdout, done.stderr) == ("[]\n", "")


def test_a_url_of_the_environment_is_opened(s3, monkeypatch, tmp_path):
    monkeypatch.setenv("OPTCLI_REMOTE_STORE", f"{s3.url}/")
    store = Store.at(tmp_path)
    assert store.remote_place == RemotePlace(s3.url)
    heard: list[str] = []
    with store.connected(lambda _, message: heard.append(message), QUICK):
        made(store, STEP)
    assert (heard, len(s3.paths())) == ([], 3)
