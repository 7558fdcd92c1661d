"""Which remote store the user's own configuration names."""

from __future__ import annotations

from pathlib import Path

import pytest

from optcli.errors import UsageError
from optcli.files.configuration import file
from optcli.store import Store
from optcli.store.remote_place import RemotePlace, remote_place


@pytest.fixture
def configuration(tmp_path, monkeypatch) -> Path:
    """A file that is not written yet."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    for name in ("OPTCLI_REMOTE_STORE", "OPTCLI_REMOTE_READONLY"):
        monkeypatch.delenv(name, raising=False)
    path = tmp_path / "optcli" / "config.toml"
    path.parent.mkdir()
    assert file() == path
    return path


def test_it_is_the_last_that_is_asked(configuration, monkeypatch):
    assert remote_place() is None
    configuration.write_text('remote_store = "s3://configured/prefix/"\n')
    assert remote_place() == RemotePlace("s3://configured/prefix")
    assert Store.of(None).remote_place == RemotePlace("s3://configured/prefix")
    assert remote_place("gs://line") == RemotePlace("gs://line")
    monkeypatch.setenv("OPTCLI_REMOTE_STORE", "s3://environment")
    assert remote_place() == RemotePlace("s3://environment")
    monkeypatch.setenv("OPTCLI_REMOTE_STORE", "")
    assert remote_place() is None, "an empty variable names none"


def test_it_says_whether_anything_is_written(configuration, monkeypatch):
    configuration.write_text('remote_store = "s3://bucket"\nremote_readonly = true\n')
    assert remote_place() == RemotePlace("s3://bucket", read_only=True)
    monkeypatch.setenv("OPTCLI_REMOTE_READONLY", "0")
    assert remote_place() == RemotePlace("s3://bucket")
    assert remote_place(read_only=True) == RemotePlace("s3://bucket", read_only=True)


def test_without_a_folder_for_configurations_it_lies_in_the_users(monkeypatch, tmp_path):
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert file() == tmp_path / ".config" / "optcli" / "config.toml"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("remote_store = s3://bucket\n", "it is no TOML"),
        ("remote_store = 5\n", "remote_store: found 5, wanted text"),
        ('remote_readonly = "yes"\n', "remote_readonly: found 'yes', wanted true or false"),
        ("remote_readonly = 1\n", "remote_readonly: found 1, wanted true or false"),
        ('remote_stor = "s3://bucket"\n', "found the unknown key 'remote_stor'"),
        ('remote_store = "bucket"\n', "found 'bucket', wanted the URL of a remote store"),
        ('remote_store = "\\u00e4"\n', "wanted the URL of a remote store"),
    ],
)
def test_what_cannot_be_understood_is_an_error_that_names_the_file(configuration, text, said):
    configuration.write_text(text)
    with pytest.raises(UsageError) as caught:
        remote_place()
    assert said in caught.value.message
    assert str(configuration) in caught.value.place
    assert caught.value.hint


def test_what_is_no_text_is_an_error(configuration):
    configuration.write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match="it cannot be read"):
        remote_place()
