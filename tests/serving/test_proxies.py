"""Traffic to this machine goes past the proxies of the environment."""

import getpass
import http.server
import os
import shutil
import subprocess
import sys
import threading
import urllib.request

import pytest
from copied_modules import RAY_FILES

from optcli import cli
from optcli.serving.deploy import ray_bundle

NAMES = [each for low in ("http_proxy", "https_proxy", "all_proxy") for each in (low, low.upper())]


class Ready(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_):
        pass


@pytest.fixture
def server(monkeypatch):
    for name in NAMES:
        monkeypatch.setenv(name, "http://127.0.0.1:9")  # nobody listens there
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with http.server.HTTPServer(("127.0.0.1", 0), Ready) as serving:
        threading.Thread(target=serving.serve_forever, args=(0.02,), daemon=True).start()
        yield serving.server_address[1]
        serving.shutdown()


@pytest.mark.slow
def test_a_bundle_asks_itself_directly(server, tmp_path):
    for name in ("launch.py", "ray.env"):
        shutil.copy(RAY_FILES / name, tmp_path)
    (tmp_path / "bundle.json").write_text("{}")
    ask = (
        "import launch, types; print(launch.Server.answers("
        f"types.SimpleNamespace(host='127.0.0.1', port={server})))"
    )
    done = subprocess.run([sys.executable, "-c", ask], cwd=tmp_path, capture_output=True, check=True)
    assert done.stdout == b"True\n"


def test_a_container_asks_itself_directly():
    assert "u.ProxyHandler({{}})" in ray_bundle._DOCKERFILE  # a template


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({}, "localhost,127.0.0.1,::1"),
        ({"NO_PROXY": ".corp"}, ".corp,localhost,127.0.0.1,::1"),
        ({"no_proxy": "a", "NO_PROXY": "b"}, "a,localhost,127.0.0.1,::1"),
        ({"no_proxy": "*"}, "*"),
    ],
)
def test_libraries_go_directly_to_this_machine(server, monkeypatch, before, after):
    for name, value in before.items():
        monkeypatch.setenv(name, value)
    for name in ("no_proxy", "NO_PROXY"):  # put back at the end, whatever is done to it here
        monkeypatch.setenv(name, os.environ.get(name, ""))
    cli.go_past_proxies_on_loopback()
    assert os.environ["no_proxy"] == after
    urllib.request.urlopen(f"http://127.0.0.1:{server}/", timeout=5).close()
    assert bool(urllib.request.proxy_bypass("example.com")) == (after == "*")


def test_a_user_without_an_entry_in_passwd_has_a_name(monkeypatch):
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.setenv(name, "")  # put back at the end
    monkeypatch.delenv("LOGNAME")
    monkeypatch.setattr(os, "getuid", lambda: 2_000_000_001)
    cli.call_the_user()
    assert getpass.getuser() == "uid2000000001"
