"""An S3 server on this machine: moto's, in a process of its own that a test may kill."""

from __future__ import annotations

import subprocess
import sys
import urllib.request
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from needs import needs

_PROGRAM = """
import sys
from moto.server import ThreadedMotoServer

server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
sys.stdin.read()
"""
_REGION = "us-east-1"
_PREFIX = "some/prefix"


@dataclass
class Server:
    """It ends with the process that started it."""

    process: subprocess.Popen[str]
    port: int

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def variables(self) -> dict[str, str]:
        """The environment by which s3fs finds the server and no credentials but these."""
        return {
            "AWS_ENDPOINT_URL": self.address,
            "AWS_ACCESS_KEY_ID": "testing",
            "AWS_SECRET_ACCESS_KEY": "testing",
            "AWS_DEFAULT_REGION": _REGION,
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_CONFIG_FILE": "/nonexistent/config",
            "AWS_SHARED_CREDENTIALS_FILE": "/nonexistent/credentials",
            # The library's own further tries take 15 s where nobody listens.
            "AWS_MAX_ATTEMPTS": "1",
        }

    @cached_property
    def client(self) -> Any:
        """Another way to what is there than the one that is tested."""
        import boto3

        return boto3.client(
            "s3",
            endpoint_url=self.address,
            region_name=_REGION,
            aws_access_key_id="testing",
            aws_secret_access_key="testing",
        )

    def bucket(self) -> Bucket:
        """A new one."""
        bucket = Bucket(self, f"bucket-{uuid.uuid4().hex}")
        self.client.create_bucket(Bucket=bucket.name)
        return bucket

    def refuse(self) -> None:
        """From now on nobody's credentials are known here."""
        self._after_requests(b"0")

    def accept(self) -> None:
        """Anybody may do anything, as at first."""
        self._after_requests(b"inf")

    def kill(self) -> None:
        """kill -9."""
        self.process.kill()
        self.process.wait()

    def _after_requests(self, count: bytes) -> None:
        """Look at credentials from so many requests on."""
        place, kind = f"{self.address}/moto-api/reset-auth", {"Content-Type": "text/plain"}
        asked = urllib.request.Request(place, count, kind, method="POST")
        with urllib.request.urlopen(asked) as answer:
            assert answer.status == 200


@dataclass
class Bucket:
    """Paths are those below the prefix of `url`."""

    server: Server
    name: str

    @property
    def url(self) -> str:
        return f"s3://{self.name}/{_PREFIX}"

    def paths(self) -> list[str]:
        """What is there, sorted."""
        found = self.server.client.list_objects_v2(Bucket=self.name, Prefix=_PREFIX)
        assert not found["IsTruncated"]
        return [each["Key"].removeprefix(f"{_PREFIX}/") for each in found.get("Contents", [])]

    def below(self, folder: str) -> list[str]:
        """What is there below a folder."""
        return [path for path in self.paths() if path.startswith(f"{folder}/")]

    def read(self, path: str) -> bytes:
        found = self.server.client.get_object(Bucket=self.name, Key=f"{_PREFIX}/{path}")
        return bytes(found["Body"].read())

    def write(self, path: str, data: bytes) -> None:
        self.server.client.put_object(Bucket=self.name, Key=f"{_PREFIX}/{path}", Body=data)

    def remove(self, path: str) -> None:
        self.server.client.delete_object(Bucket=self.name, Key=f"{_PREFIX}/{path}")


@contextmanager
def started() -> Iterator[Server]:
    """A server; skips where its packages are not installed."""
    for package in ("s3fs", "moto", "flask_cors"):
        needs("package", package)
    process = subprocess.Popen(
        [sys.executable, "-c", _PROGRAM],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert process.stdout is not None
        yield Server(process, int(process.stdout.readline()))
    finally:
        process.kill()
        process.wait()


def forget() -> None:
    """Have s3fs look at the environment anew: it keeps a file system for each set of options."""
    from s3fs import S3FileSystem

    S3FileSystem.clear_instance_cache()
