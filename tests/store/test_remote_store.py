"""A remote store beside a local one: read-through, write-through, faults that cost nothing but time."""

from __future__ import annotations

import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import faulty_remote
import fsspec
import pytest
from faulty_remote import HASTY, QUICK, Admits, Machine, files_of, made

from optcli.errors import InputError, MissingError, TrustError, UsageError
from optcli.store import Store, key_of, locks
from optcli.store.remote import KINDS, RemotePlace, manifest, remote_place

STEP = {"step": "export_onnx", "options": {"opset": 18}}
KEY = key_of(STEP)


@pytest.fixture
def faults():
    faults = faulty_remote.register()
    yield faults
    faults.never.set()


@pytest.fixture
def url(faults, tmp_path) -> str:
    return f"faulty://{tmp_path}/remote"


@pytest.fixture
def here(tmp_path, url) -> Machine:
    return Machine(tmp_path / "here", url)


@pytest.fixture
def there(tmp_path, url) -> Machine:
    return Machine(tmp_path / "there", url)


def objects(tmp_path: Path) -> list[Path]:
    return sorted(path for path in (tmp_path / "remote/v1/objects").rglob("*") if path.is_file())


def manifests(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "remote/v1/entries").rglob("*.json"))


def parts(tmp_path: Path) -> list[Path]:
    return list((tmp_path / "remote").rglob(".part-*"))


class TestWhatTravels:
    def test_what_one_machine_made_another_one_finds(self, here, there, tmp_path):
        (made_here,) = here.make(STEP)
        found = there.find(STEP)
        assert files_of(found) == files_of(made_here)
        assert replace(found, path=made_here.path, origin="") == made_here
        assert found.origin == f"faulty://{tmp_path}/remote"
        assert (here.heard, there.heard) == ([], [])
        assert not there.store.verify()
        assert not parts(tmp_path)

    def test_what_was_fetched_is_asked_for_once(self, here, there, faults):
        here.make(STEP)
        there.find(STEP)
        before = len(faults.asked)
        assert there.find(STEP) is not None
        assert len(faults.asked) == before

    def test_what_was_fetched_remembers_where_from_in_the_next_process(self, here, there):
        here.make(STEP)
        there.find(STEP)
        assert Store(there.store.root).get("artifact", KEY).origin.startswith("faulty://")
        assert Store(here.store.root).get("artifact", KEY).origin == ""

    @pytest.mark.slow
    @pytest.mark.parametrize("scheme", ["file", "memory"])
    def test_other_file_systems_of_fsspec_do_as_well(self, scheme, tmp_path):
        place = f"{scheme}://{tmp_path}/shared"
        Machine(tmp_path / "here", place).make(STEP, model=b"x" * (9 << 20))
        there = Machine(tmp_path / "there", place)
        assert files_of(there.find(STEP)) == {"model": b"x" * (9 << 20)}
        assert there.heard == []
        fsspec.filesystem("memory").store.clear()

    @pytest.mark.slow
    def test_only_kinds_that_hold_on_any_machine_are_uploaded(self, here, there, tmp_path):
        stay = ("measurement", "sweep", "shapes", "prepared", "traits", "baseline-written")
        for kind in stay:
            here.make(STEP, kind=kind)
        assert manifests(tmp_path) == []
        for kind in sorted(KINDS):
            here.make(STEP, kind=kind)
            assert there.find(STEP, kind=kind) is not None

    def test_nothing_is_fetched_by_who_says_not_what_is_taken(self, here, there, faults):
        here.make(STEP)
        before = len(faults.asked)
        with there.connected():
            assert there.store.get("artifact", KEY) is None
        assert len(faults.asked) == before

    def test_what_is_made_anew_is_not_fetched(self, here, there):
        here.make(STEP)
        assert there.find(STEP, anew=True) is None

    def test_what_was_made_before_there_was_a_remote_store_is_uploaded_on_use(self, here, there):
        made(here.store, STEP)
        assert there.find(STEP) is None
        assert here.find(STEP) is not None
        assert there.find(STEP) is not None

    def test_equal_files_are_uploaded_once(self, here, tmp_path, faults):
        here.make(STEP, {"step": "another"}, model=b"same", other=b"same")
        assert len(objects(tmp_path)) == 1
        assert len(manifests(tmp_path)) == 2
        assert faults.count("pipe_file") == 3

    def test_what_was_fetched_is_not_uploaded_elsewhere(self, here, there, tmp_path, faults):
        here.make(STEP)
        there.find(STEP)
        third = Machine(there.store.root, f"faulty://{tmp_path}/third")
        assert third.find(STEP).origin
        assert not (tmp_path / "third").exists()

    @pytest.mark.slow
    def test_a_read_only_one_is_read_and_not_written(self, here, tmp_path, url):
        here.make(STEP)
        before = manifests(tmp_path), objects(tmp_path)
        stranger = Machine(tmp_path / "stranger", url, read_only=True)
        assert stranger.find(STEP) is not None
        stranger.make({"step": "mine"})
        assert (manifests(tmp_path), objects(tmp_path)) == before

    def test_what_is_noted_of_uploads_goes_with_the_entry(self, here):
        here.make(STEP, {"step": "another"})
        here.store.discard("artifact", KEY)
        here.store.gc()
        marks = [path.name for path in (here.store.root / "remotes").glob("*/*")]
        assert marks == [f"artifact-{key_of({'step': 'another'})}"]

    def test_without_one_nothing_of_it_is_imported(self, tmp_path):
        program = (
            "import sys; from pathlib import Path; from optcli.store import Store\n"
            "store = Store.of(Path(sys.argv[1]))\n"
            "with store.connected(print): store.get('artifact', 'k')\n"
            "wrong = [n for n in sys.modules if n.startswith(('fsspec', 'optcli.store.remote.'))]\n"
            "print(wrong)"
        )
        said = subprocess.run(
            [sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=True
        )
        assert said.stdout.strip() == "[]"


class TestAdmission:
    def test_what_is_refused_by_its_record_is_not_downloaded(self, here, there, faults):
        here.make(STEP)
        before = faults.count("cat_file")
        wrong = Admits(InputError("it is a picture", hint="none"))
        assert there.find(STEP, admission=wrong) is None
        assert faults.count("cat_file") == before + 1
        assert len(there.heard) == 1
        assert f"artifact {KEY[:12]} is refused: it is a picture" in there.heard[0]

    def test_what_is_refused_by_its_files_leaves_nothing(self, here, there):
        here.make(STEP)
        assert there.find(STEP, admission=Admits(InputError("no", hint="-"), of="files")) is None
        assert list(there.store.entries()) == []
        assert list((there.store.root / "work").iterdir()) == []

    @pytest.mark.slow
    def test_code_is_told_once_and_stays_where_it_is(self, here, there, tmp_path):
        here.make(STEP, {"step": "another"})
        before = {path: path.read_bytes() for path in manifests(tmp_path)}
        untrusted = Admits(TrustError("code", hint="--trust takes it"))
        with there.connected():
            for step in (STEP, {"step": "another"}):
                assert there.store.get("artifact", key_of(step), admission=untrusted) is None
                made(there.store, step, model=b"made there")
        assert len(there.heard) == 1
        assert "--trust takes it" in there.heard[0]
        assert {path: path.read_bytes() for path in manifests(tmp_path)} == before

    @pytest.mark.slow
    def test_what_was_fetched_with_trust_is_made_here_without_it(self, here, there):
        here.make(STEP)
        assert there.find(STEP).origin
        untrusted = Admits(TrustError("code", hint="--trust takes it"))
        assert there.find(STEP, admission=untrusted) is None
        assert there.store.peek("artifact", KEY) is None
        there.make(STEP)
        assert there.find(STEP, admission=untrusted).origin == ""

    def test_what_was_made_here_is_not_asked_about(self, here):
        here.make(STEP)
        assert here.find(STEP, admission=Admits(TrustError("code", hint="-"))) is not None


class TestDamage:
    def damage(self, tmp_path: Path) -> Path:
        (path,) = (each for each in objects(tmp_path) if each.read_bytes() == b"graph")
        path.write_bytes(b"GRAPH")
        return path

    @pytest.mark.slow
    def test_a_corrupted_object_is_refused_named_and_replaced(self, here, there, tmp_path):
        here.make(STEP)
        damaged = self.damage(tmp_path)
        with there.connected():
            assert there.store.get("artifact", KEY, admission=Admits()) is None
            assert there.store.get("artifact", KEY, admission=Admits()) is None
            made(there.store, STEP)
        assert len(there.heard) == 1
        assert f"artifact {KEY[:12]} is refused: its object {damaged.name[:12]}" in there.heard[0]
        assert damaged.read_bytes() == b"graph"
        assert Machine(tmp_path / "third", here.store.remote_place.url).find(STEP) is not None

    def test_a_read_only_one_stays_damaged(self, here, tmp_path, url):
        here.make(STEP)
        damaged = self.damage(tmp_path)
        stranger = Machine(tmp_path / "stranger", url, read_only=True)
        with stranger.connected():
            assert stranger.store.get("artifact", KEY, admission=Admits()) is None
            made(stranger.store, STEP)
        assert damaged.read_bytes() == b"GRAPH"

    def test_a_build_that_was_killed_before_it_replaced_it_does_it_next_time(
        self, here, there, tmp_path
    ):
        here.make(STEP)
        damaged = self.damage(tmp_path)
        assert there.find(STEP) is None
        made(there.store, STEP)  # not connected: as if it had been killed before the upload
        with there.connected():
            pass
        assert damaged.read_bytes() == b"graph"

    def test_a_missing_object_is_refused_and_replaced(self, here, there, tmp_path):
        here.make(STEP)
        for path in objects(tmp_path):
            path.unlink()
        assert there.find(STEP) is None
        assert "is missing" in there.heard[0]
        there.make(STEP)
        assert len(objects(tmp_path)) == 2

    def test_an_object_that_was_damaged_on_its_way_is_fetched_again(self, here, there, faults):
        here.make(STEP)
        once = iter([True])
        faults.after = lambda path, data: (
            data[::-1] if "/objects/" in path and len(data) == 5 and next(once, False) else data
        )
        assert there.find(STEP) is not None
        assert there.heard == []

    def test_one_that_is_longer_than_it_says_is_cut(self, here, there, tmp_path):
        here.make(STEP)
        for path in objects(tmp_path):
            path.write_bytes(path.read_bytes() + b"more" * 1000)
        assert files_of(there.find(STEP))["model"] == b"graph"

    def test_a_damaged_manifest_is_refused_and_replaced(self, here, there, tmp_path):
        here.make(STEP)
        (path,) = manifests(tmp_path)
        path.write_bytes(path.read_bytes()[:-20])
        assert there.find(STEP) is None
        assert "its manifest cannot be read" in there.heard[0]
        there.make(STEP)
        assert Machine(tmp_path / "third", here.store.remote_place.url).find(STEP) is not None

    @pytest.mark.parametrize("left", [0, 3, 8 << 20, 9 << 20])
    def test_an_object_that_was_cut_is_refused_where_ranges_behind_its_end_fail(
        self, here, there, tmp_path, faults, left
    ):
        """As S3 does."""
        here.make(STEP, model=b"x" * (10 << 20))
        (path,) = objects(tmp_path)
        path.write_bytes(b"x" * left)
        faults.range_fails = True
        assert there.find(STEP) is None
        assert len(there.heard) == 1
        assert "has not the content of its digest" in there.heard[0]

    @pytest.mark.parametrize("what", ["link", "folder"])
    def test_what_is_no_file_there_is_refused(self, here, there, tmp_path, what):
        here.make(STEP)
        (path,) = (each for each in objects(tmp_path) if each.read_bytes() == b"graph")
        path.unlink()
        if what == "link":
            (tmp_path / "secret").write_bytes(b"others' secrets")
            path.symlink_to(tmp_path / "secret")
        else:
            path.mkdir()
        assert there.find(STEP) is None
        assert len(there.heard) == 1
        assert not any(b"secrets" in each.read_bytes() for each in there.store.root.rglob("model"))

    def test_a_file_that_was_changed_here_is_not_uploaded(self, here, there, tmp_path):
        entry = made(here.store, STEP)
        (entry.path / "model").chmod(0o644)
        (entry.path / "model").write_bytes(b"GRAPH")
        with here.connected():
            here.store.remote.keep(entry)
        assert manifests(tmp_path) == []
        assert "was changed in the store" in here.heard[0]


class TestFaults:
    @pytest.mark.parametrize("error", [OSError("reset"), RuntimeError("odd"), TimeoutError("slow")])
    def test_a_request_that_fails_is_tried_again(self, here, there, faults, error):
        here.make(STEP)
        failures = iter([error, error])

        def fail(name, path):
            if name == "cat_file" and (wrong := next(failures, None)):
                raise wrong

        faults.before = fail
        assert there.find(STEP) is not None
        assert there.heard == []

    @pytest.mark.slow
    def test_one_that_fails_again_and_again_is_given_up_with_one_warning(self, here, there, faults):
        here.make(STEP)

        def fail(name, path):
            raise OSError("network unreachable")

        faults.before = fail
        before = len(faults.asked)
        with there.connected():
            for number in range(5):
                step = {"step": f"s{number}"}
                assert there.store.get("artifact", key_of(step), admission=Admits()) is None
                made(there.store, step)
        assert len(there.heard) == 1
        assert "network unreachable; going on without the remote store" in there.heard[0]
        assert len(faults.asked) - before <= 6  # the tries of one look, and of one upload beside it

    @pytest.mark.slow
    def test_one_that_hangs_is_given_up(self, here, there, faults):
        here.make(STEP)
        faults.before = faults.hang
        there.limits = HASTY
        with there.connected():
            assert there.store.get("artifact", KEY, admission=Admits()) is None
            made(there.store, STEP)
        assert len(there.heard) == 1
        assert "no answer within" in there.heard[0]

    @pytest.mark.slow
    @pytest.mark.parametrize("way", ["hangs", "fails"])
    def test_one_that_cannot_even_be_opened_is_given_up(self, there, faults, way):
        """As where a library looks for credentials on a network."""

        def fail(name, path):
            if name == "open":
                if way == "hangs":
                    faults.hang(name, path)
                raise RuntimeError("no credentials")

        faults.before = fail
        there.limits = HASTY if way == "hangs" else QUICK
        with there.connected():
            for number in range(3):
                step = {"step": f"s{number}"}
                assert there.store.get("artifact", key_of(step), admission=Admits()) is None
                made(there.store, step)
        assert len(there.heard) == 1
        assert ("no answer" if way == "hangs" else "no credentials") in there.heard[0]

    def test_one_that_vanishes_in_the_middle_of_an_entry_leaves_nothing_half(self, here, there, faults):
        here.make(STEP)

        def fail(name, path):
            if "/objects/" in path:
                raise OSError("gone")

        faults.before = fail
        assert there.find(STEP) is None
        assert list(there.store.entries()) == []
        assert list((there.store.root / "work").iterdir()) == []
        faults.before = lambda name, path: None
        assert there.find(STEP) is not None

    @pytest.mark.slow
    def test_uploads_that_were_not_done_are_done_next_time(self, here, there, faults):
        faults.before = faults.hang
        here.limits = HASTY
        here.make(STEP)
        assert len(here.heard) == 1
        faults.before = lambda name, path: None
        faults.never.set()
        here.limits = QUICK
        with here.connected():  # a build of something else
            pass
        assert there.find(STEP) is not None

    def test_an_upload_that_takes_too_long_is_left_to_the_next_build(self, here, there, faults):
        here.limits = replace(QUICK, finish_s=0.0)
        faults.before = faults.hang
        here.make(STEP)
        assert here.heard == ["1 result is not uploaded yet; the next build uploads what is left"]
        faults.never.set()
        here.limits = QUICK
        here.find(STEP)
        assert there.find(STEP) is not None

    @pytest.mark.slow
    def test_one_that_may_not_be_written_is_read_on(self, here, there, faults):
        here.make(STEP)

        def deny(name, path):
            if name in ("pipe_file", "put_file"):
                raise PermissionError("access denied")

        faults.before = deny
        with there.connected():
            made(there.store, {"step": "mine"})
            made(there.store, {"step": "mine too"})
            there.store.remote._uploads.finish(120)
            assert there.store.get("artifact", KEY, admission=Admits()) is not None
        assert len(there.heard) == 1
        assert "nothing can be written there (access denied)" in there.heard[0]

    def test_an_upload_that_fails_halfway_shows_nothing(self, here, there, faults, tmp_path):
        def fail(name, path):
            if name == "pipe_file" and "/entries/" in path:
                raise OSError("gone")

        faults.before = fail
        here.make(STEP)
        assert objects(tmp_path)
        assert manifests(tmp_path) == []
        assert parts(tmp_path) == []
        assert there.find(STEP) is None
        assert there.heard == []

    def test_a_failing_build_uploads_what_it_made_and_an_interrupted_one_does_not_wait(
        self, here, there
    ):
        def fail(error, step):
            with here.connected():
                made(here.store, step)
                raise error

        with pytest.raises(ZeroDivisionError):
            fail(ZeroDivisionError(), STEP)
        assert there.find(STEP) is not None
        here.limits = replace(here.limits, finish_s=1e9)
        faulty_remote.FaultyFileSystem.faults.before = faulty_remote.FaultyFileSystem.faults.hang
        with pytest.raises(KeyboardInterrupt):
            fail(KeyboardInterrupt(), {"step": "other"})

    @pytest.mark.slow
    def test_nothing_is_sent_while_something_is_measured(self, here, there, faults):
        with here.connected():
            with locks.background_paused():
                before = len(faults.asked)
                made(here.store, STEP)
                assert here.store.remote._uploads.finish(0.2) == 1
                assert len(faults.asked) == before
            assert here.store.remote._uploads.finish(120) == 0
        assert there.find(STEP) is not None

    def test_a_store_that_cannot_be_written_finds_nothing_and_fails_nothing(
        self, here, there, tmp_path
    ):
        here.make(STEP)
        (tmp_path / "there").write_text("a file in the place of the store")
        assert there.find(STEP) is None

    def test_what_does_not_fit_on_the_disk_is_not_fetched(self, here, there, monkeypatch):
        import shutil

        here.make(STEP)
        usage = shutil.disk_usage("/")
        monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=1000))
        assert there.find(STEP) is None
        assert "is not fetched" in there.heard[0]


class TestAtOnce:
    @pytest.mark.slow
    def test_two_machines_that_write_one_key_at_once_leave_one_whole_entry(self, tmp_path, url):
        machines = [Machine(tmp_path / f"m{number}", url) for number in range(6)]
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
        found = files_of(Machine(tmp_path / "reader", url).find(STEP))
        assert found["other"] == found["model"][::-1]
        assert parts(tmp_path) == []
        assert [machine.heard for machine in machines] == [[]] * 6

    def test_who_finds_the_lock_held_leaves_the_fetching_to_its_holder(self, here, there, faults):
        here.make(STEP)
        before = len(faults.asked)
        with there.connected(), there.store.lock("artifact", KEY):
            assert there.store.get("artifact", KEY, admission=Admits()) is None
        assert len(faults.asked) == before

    def test_two_processes_of_one_machine_fetch_once(self, here, there, faults):
        here.make(STEP)
        before = faults.count("cat_file")
        found = []

        def fetch() -> None:
            machine = Machine(there.store.root, here.store.remote_place.url)
            with machine.connected():
                while (entry := machine.store.get("artifact", KEY, admission=Admits())) is None:
                    pass
                found.append(entry)

        threads = [threading.Thread(target=fetch) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(found) == 4
        assert faults.count("cat_file") - before == 3  # the manifest and two objects


class TestWhichOne:
    def test_the_command_line_goes_before_the_environment(self, monkeypatch):
        monkeypatch.setenv("OPTCLI_REMOTE_STORE", "s3://environment/prefix/")
        assert remote_place() == RemotePlace("s3://environment/prefix")
        assert remote_place("gs://line") == RemotePlace("gs://line")
        assert Store.of(None).remote_place == RemotePlace("s3://environment/prefix")

    def test_none_is_named(self, monkeypatch):
        monkeypatch.delenv("OPTCLI_REMOTE_STORE", raising=False)
        assert remote_place(read_only=True) is None

    @pytest.mark.parametrize(
        ("text", "read_only"), [("1", True), ("yes", True), ("0", False), ("", False), ("False", False)]
    )
    def test_read_only_by_the_environment(self, monkeypatch, text, read_only):
        monkeypatch.setenv("OPTCLI_REMOTE_READONLY", text)
        assert remote_place("s3://bucket").read_only is read_only
        assert remote_place("s3://bucket", read_only=True).read_only

    def test_a_doubtful_word_for_read_only_is_no_no(self, monkeypatch):
        monkeypatch.setenv("OPTCLI_REMOTE_READONLY", "ture")
        with pytest.raises(UsageError, match="found 'ture', wanted 1 or 0"):
            remote_place("s3://bucket")

    @pytest.mark.parametrize("wrong", ["bucket/prefix", "/srv/store", "s3:/x", "://x", "s3://"])
    def test_what_is_no_url_is_a_usage_error(self, wrong):
        with pytest.raises(UsageError, match="wanted the URL of a remote store"):
            remote_place(wrong)

    def test_an_unknown_protocol_is_a_usage_error(self, tmp_path):
        machine = Machine(tmp_path, "nosuchprotocol://x")
        with pytest.raises(UsageError, match="fsspec knows no protocol 'nosuchprotocol'"):
            machine.find(STEP)

    def test_a_missing_library_is_named_with_the_command(self, tmp_path, monkeypatch):
        faulty_remote.without_s3fs(monkeypatch)
        with pytest.raises(MissingError) as caught:
            Machine(tmp_path, "s3://bucket/prefix").find(STEP)
        assert caught.value.hint == "`pip install 'fsspec[s3]'`"

    def test_a_password_in_the_url_is_not_shown(self):
        assert RemotePlace("s3://key:secret@host/bucket").shown == "s3://host/bucket"

    def test_the_paths_there_are_not_those_of_the_local_store(self):
        assert manifest.identity_of(manifest.path_of("artifact", KEY)) == ("artifact", KEY)
        for wrong in ("v1/entries/artifact/x.json", f"v1/entries/a/b/{KEY}.json", f"v1/{KEY}.json"):
            assert manifest.identity_of(wrong) is None
