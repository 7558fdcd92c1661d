"""Messages between two ends of a connection, without ssh; and what a user says of devices."""

from __future__ import annotations

import os
import threading

import pytest

from optcli.errors import MissingError, UsageError
from optcli.pipeline.on_ssh import frames, hosts
from optcli.pipeline.on_ssh.frames import EndedError, Frames
from optcli.pipeline.on_ssh.hosts import Host


@pytest.fixture
def ends():
    """Two ends, and the descriptors by which the first one is written to by hand."""
    there, here = os.pipe(), os.pipe()
    yield Frames(here[0], there[1]), Frames(there[0], here[1]), here[1]
    for descriptor in (*there, *here):
        os.close(descriptor)


def test_what_is_sent_arrives_whole_and_in_order(ends):
    here, there, _ = ends
    large = os.urandom(3 << 20)
    sending = threading.Thread(target=lambda: [here.send("part", large, digest="d"), here.send("end")])
    sending.start()
    frame = there.receive()
    assert (frame.kind, frame.about, frame.payload) == ("part", {"digest": "d"}, large)
    assert there.receive().kind == "end"
    sending.join()
    there.send_record("seen", {"of": [1, "two"]})
    assert here.receive().record() == {"of": [1, "two"]}


def test_greetings_of_a_shell_come_before_the_first_word(ends):
    here, _, by_hand = ends
    os.write(by_hand, b"Welcome to Raspberry Pi\nhere: {}\n")
    assert here.hello(b"here: ", 1.0) == b"{}"


def test_who_says_nothing_is_taken_for_lost(ends, monkeypatch):
    here, there, _ = ends
    monkeypatch.setattr(frames, "SILENCE_S", 0.05)
    with pytest.raises(EndedError, match="said nothing for"):
        here.receive()
    with pytest.raises(EndedError, match="taken nothing for"):
        there.send("part", bytes(1 << 20))
    with pytest.raises(EndedError, match="said nothing for"):
        here.hello(b"here: ", 0.01)


@pytest.mark.parametrize(
    ("bytes_", "said"),
    [
        (b"bash: python3: not found\n", "no message of optcli"),
        (b"[1]\n", "no message of optcli"),
        (b'{"kind": "a", "bytes": -1}\n', "announced -1 bytes"),
        (b'{"kind": "a", "bytes": 99999999999}\n', "announced 99999999999 bytes"),
        (b"x" * (1 << 15) * 3, "no message of optcli"),
    ],
)
def test_what_is_no_message_ends_the_connection(ends, bytes_, said):
    here, _, by_hand = ends
    writing = threading.Thread(target=lambda: os.write(by_hand, bytes_))
    os.set_blocking(by_hand, True)
    writing.start()
    with pytest.raises(EndedError, match=said):
        here.receive()
    writing.join()


def test_an_end_that_is_gone_is_named_and_a_closed_one_sends_nothing(ends):
    here, there, by_hand = ends
    assert there.close(1.0)
    with pytest.raises(EndedError, match="closed"):
        there.send("a")
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, by_hand)
    os.close(nothing)
    with pytest.raises(EndedError, match="ended the connection"):
        here.receive()


@pytest.fixture
def configuration(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv(hosts.VARIABLE, raising=False)
    path = tmp_path / "optcli" / "config.toml"
    path.parent.mkdir()
    return path


def test_the_user_says_where_a_device_is(configuration, monkeypatch):
    with pytest.raises(MissingError, match="the device 'pi' has no address here") as caught:
        hosts.host_of("pi")
    assert str(configuration) in caught.value.hint
    configuration.write_text(
        'devices.pi = {ssh = "me@pi", options = ["-p", "2222"], python = "~/venv/bin/python"}\n'
    )
    assert hosts.host_of("pi") == Host("me@pi", ("-p", "2222"), "~/venv/bin/python")
    monkeypatch.setenv(hosts.VARIABLE, "pi=you@other edge=e")
    assert hosts.host_of("pi").target == "you@other"
    assert hosts.host_of("edge") == Host("e")
    assert hosts.host_named("me@board") == ("me@board", Host("me@board"))
    assert hosts.host_named("edge") == ("edge", Host("e"))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('devices.pi = "me@pi"', "wanted a table"),
        ("devices.pi = {}", "has no `ssh`"),
        ("devices.pi = {ssh = 5}", "wanted text"),
        ('devices.pi = {ssh = "me@pi", option = "-p"}', "unknown key 'option'"),
        ('devices.pi = {ssh = ["a"]}', "wanted text"),
        ('devices.pi = {ssh = "-oProxyCommand=x"}', "wanted user@host"),
        ('devices.pi = {ssh = "me@pi x"}', "wanted user@host"),
        ('devices.pi = {ssh = "me@pi", options = [5]}', "wanted a list of texts"),
        ("devices = 5", "wanted a table for each device"),
    ],
)
def test_what_a_user_says_wrongly_is_named_with_its_place(configuration, text, said):
    configuration.write_text(text)
    with pytest.raises(UsageError, match=said) as caught:
        hosts.host_of("pi")
    assert str(configuration) in caught.value.place


def test_a_variable_that_cannot_be_read_is_an_error(configuration, monkeypatch):
    for text in ("pi", "=me@pi", "pi=-oProxyCommand=x"):
        monkeypatch.setenv(hosts.VARIABLE, text)
        with pytest.raises(UsageError):
            hosts.host_of("pi")
