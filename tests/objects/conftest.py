"""Servers of object stores on loopback, and stores in them; the same stores in memory."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import fsspec
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from hsstore.testing.finite import make_mixed_store
from tests.objects import seaweedfs as seaweedfs_
from tests.objects.s3 import NAMES, S3, SECRET, Google

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def running(module: str) -> Iterator[str]:
    """Run a server; return its endpoint."""
    command = [sys.executable, "-m", f"tests.objects.{module}"]
    root = Path(__file__).parents[2]
    with subprocess.Popen(
        command, cwd=root, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        assert process.stdout is not None
        yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        process.terminate()


@pytest.fixture(scope="session")
def server() -> Iterator[str]:
    """Run the S3 server; return its endpoint."""
    with running("server") as endpoint:
        yield endpoint


@pytest.fixture(scope="session")
def google() -> Iterator[tuple[str, Path]]:
    """Run the server that speaks as Google's does; return its endpoint and a file with a service account."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    pem = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    with (
        running("google_server") as endpoint,
        tempfile.TemporaryDirectory(dir="/dev/shm", prefix="hsstore-test-") as path,
    ):
        file = Path(path) / "account.json"
        account = {
            "type": "service_account",
            "client_email": "somebody@example.com",
            "private_key": pem.decode(),
            "token_uri": f"{endpoint}/_token",
        }
        file.write_text(json.dumps(account))
        yield endpoint, file


@pytest.fixture
def s3(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3]:
    """Give the server, with credentials in the environment, and little patience."""
    server = request.getfixturevalue("seaweedfs" if seaweedfs_.IS_MEANT else "server")
    environment = {
        "AWS_ENDPOINT_URL": server,
        "AWS_ACCESS_KEY_ID": "somebody",
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("hsstore.objects.retry.FIRST_DELAY_SECONDS", 0.001)
    files = fsspec.filesystem("s3", use_listings_cache=False)
    if not files.exists("s3://states"):
        files.mkdir("s3://states")
    if seaweedfs_.IS_MEANT:
        yield seaweedfs_.SeaweedFS(server)
        return
    found = S3(server)
    found.requests()
    found.release()
    yield found
    found.fail("", "", times=0)


@pytest.fixture
def gs(google: tuple[str, Path], monkeypatch: pytest.MonkeyPatch) -> Iterator[Google]:
    """Give that server, with credentials in the environment, and little patience."""
    endpoint, account = google
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", endpoint)
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(account))
    monkeypatch.setattr("hsstore.objects.retry.FIRST_DELAY_SECONDS", 0.001)
    found = Google(endpoint)
    found.requests()
    found.release()
    yield found
    found.fail("", "", times=0)


@pytest.fixture(params=["s3"] if seaweedfs_.IS_MEANT else ["s3", "gs"])
def remote(request: pytest.FixtureRequest) -> S3:
    """Give either server."""
    found: S3 = request.getfixturevalue(request.param)
    return found


@pytest.fixture(scope="session")
def seaweedfs() -> Iterator[str]:
    """Run the other S3 server; return its endpoint."""
    with seaweedfs_.running() as endpoint:
        yield endpoint


@pytest.fixture(scope="session")
def mixed() -> Iterator[Path]:
    """Give a store with complete, pending and failed samples. Not to be changed."""
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="hsstore-test-") as path:
        yield make_mixed_store(Path(path) / "store.zarr").path


@pytest.fixture
def directory() -> Iterator[Path]:
    """Give an empty directory in shared memory."""
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="hsstore-test-") as path:
        yield Path(path)


@pytest.fixture
def in_memory(mixed: Path) -> Iterator[str]:
    """Give the URL of that store in memory."""
    files = fsspec.filesystem("memory")
    url = f"memory://states/{next(NAMES)}/store.zarr"
    files.put(str(mixed), url, recursive=True)
    yield url
    files.rm("memory://states", recursive=True)
