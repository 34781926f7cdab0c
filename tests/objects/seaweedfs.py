"""SeaweedFS in place of moto's server: another server that speaks as S3, which nobody here has written.

`make test-seaweedfs` has these tests run on it: with HSSTORE_S3_SERVER=seaweedfs.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fsspec
import pytest
from typing_extensions import override

from tests.objects.s3 import NAMES, S3, SECRET

if TYPE_CHECKING:
    from collections.abc import Iterator

IS_MEANT = os.environ.get("HSSTORE_S3_SERVER") == "seaweedfs"
BEGINS_SECONDS = 60
GRPC = 10_000
"""SeaweedFS has a second port for each, so much higher."""


class SeaweedFS(S3):
    """The server, seen by a test: one that wants it to fail, or to say what it was asked, is skipped."""

    @override
    def upload(self, path: Path, **options: str) -> str:
        if options:
            pytest.skip(f"SeaweedFS does not know {', '.join(options)}")
        url = f"s3://states/{next(NAMES)}/{path.name}"
        fsspec.filesystem("s3", use_listings_cache=False).put(str(path), url, recursive=True)
        return url

    @override
    def fail_all(self, faults: list[dict[str, Any]]) -> None:
        if faults:
            pytest.skip("only moto's server fails on demand")

    @override
    def unused_faults(self) -> int:
        return 0

    @override
    def release(self) -> list[str]:
        return []

    @override
    def requests(self) -> list[dict[str, str]]:
        pytest.skip("only moto's server says what it was asked")


@contextmanager
def running() -> Iterator[str]:
    """Run all of SeaweedFS in one process, with its data in shared memory; give the endpoint of its gateway."""
    beside = Path(sys.executable).parent
    weed = shutil.which("weed", path=beside) or shutil.which("weed")
    if weed is None:
        pytest.fail("weed is not installed: make test-seaweedfs")
    master, volume, filer, s3 = _free_ports(4)
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="hsstore-test-") as path:
        command = [
            weed, f"-logdir={path}", "server", f"-dir={path}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1",
            f"-master.port={master}", f"-volume.port={volume}", f"-filer.port={filer}", f"-s3.port={s3}",
            "-s3", f"-s3.config={_identities(Path(path))}", "-s3.iam=false", "-s3.port.iceberg=0", "-s3.port.lance=0",
            "-master.volumeSizeLimitMB=64", "-volume.max=0",
        ]  # fmt: skip
        with subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        ) as process:
            _wait_for(s3, process)
            yield f"http://127.0.0.1:{s3}"
            process.kill()  # it would take half a minute to end in good order


def _identities(directory: Path) -> Path:
    credentials = [{"accessKey": "somebody", "secretKey": SECRET}]
    somebody = {"name": "somebody", "credentials": credentials, "actions": ["Admin"]}
    file = directory / "identities.json"
    file.write_text(json.dumps({"identities": [somebody]}))
    return file


def _free_ports(number: int) -> list[int]:
    """Choose ports that are free, with their second ones, below those that the system gives away."""
    candidates = random.sample(range(10_000, 22_000), 200)
    return [port for port in candidates if _is_free(port) and _is_free(port + GRPC)][:number]


def _is_free(port: int) -> bool:
    with socket.socket() as tried:
        try:
            tried.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + BEGINS_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        with socket.socket() as tried:
            if tried.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    process.kill()
    pytest.fail("SeaweedFS did not start")
