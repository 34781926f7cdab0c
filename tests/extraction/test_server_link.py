"""Ways to a server: keys, certificates, addresses; what can never work is told at once."""
# ruff: noqa: ASYNC240  # looking at a store in shared memory blocks nothing

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

import extraction.server_link
from extraction.access import read_access
from hsstore.cli.app import app
from hsstore.errors import InputError
from hsstore.store import Store
from tests.extraction.fake_server import serve_fake
from tests.extraction.running import run_here
from tests.extraction.tiny import write_data
from tests.extraction.tls import server_context, write_authority

if TYPE_CHECKING:
    from pathlib import Path

KEY = "sk-very-secret"
PATIENCE_SECONDS = 300
"""A run that waits for its server instead of telling what is wrong takes twice as long."""


@pytest.fixture
def few(room: Path) -> Path:
    """Give three samples of 5 tokens."""
    return write_data(room / "linked.jsonl", [5, 5, 5])


@pytest.mark.parametrize("status", [401, 403])
async def test_a_health_check_that_lets_nobody_in_is_refused_at_once(
    store: Path, few: Path, status: int
) -> None:
    async with serve_fake(store.parent / "spool", 3, announced=False) as server:
        server.health_status = status
        async with asyncio.timeout(PATIENCE_SECONDS):
            outcome = await run_here(store, server.url, server.spool.directory.path, few)

    assert outcome.code == 3
    assert f"the server answered {status}: no key was sent" in outcome.message
    assert "set HSSTORE_API_KEY" in outcome.message


async def test_a_key_file_is_read_and_its_key_is_told_nowhere(store: Path, few: Path) -> None:
    path = store.parent / "key"
    path.write_text(f"{KEY}\n")
    async with serve_fake(store.parent / "spool", 3) as server:
        server.key = KEY
        outcome = await run_here(
            store, server.url, server.spool.directory.path, few, api_key_file=path
        )

    assert outcome.code == 0, outcome.message
    told = outcome.log + outcome.message + outcome.status.model_dump_json()
    stored = b"".join(one.read_bytes() for one in store.rglob("*") if one.is_file())
    assert KEY not in told
    assert KEY.encode() not in stored
    assert Store.open(store).runs()[0].options["api_key_file"] == str(path)


async def test_a_wrong_key_is_refused_and_not_shown(
    store: Path, few: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HSSTORE_API_KEY", "sk-another")
    async with serve_fake(store.parent / "spool", 3) as server:
        server.key = KEY
        outcome = await run_here(store, server.url, server.spool.directory.path, few)

    assert outcome.code == 3
    assert "the key that was sent is not the one it was started with" in outcome.message
    assert "sk-" not in outcome.message + outcome.log


@pytest.mark.parametrize(
    ("content", "text"),
    [("", "is empty"), ("one two", "not one key"), ("one\ntwo", "not one key"), (None, "cannot")],
)
def test_a_key_file_without_one_key_is_wrong_input_and_not_shown(
    tmp_path: Path, content: str | None, text: str
) -> None:
    path = tmp_path / "key"
    if content is not None:
        path.write_text(content)

    with pytest.raises(InputError, match=text) as caught:
        read_access(path, None)

    assert "one two" not in str(caught.value)
    assert "two" not in str(caught.value).replace("not one key", "")


async def test_https_works_with_the_authority_that_signed_the_certificate(
    store: Path, few: Path
) -> None:
    tls = server_context(store.parent)
    async with serve_fake(store.parent / "spool", 3, tls=tls) as server:
        outcome = await run_here(
            store,
            server.url,
            server.spool.directory.path,
            few,
            ca_cert=write_authority(store.parent),
        )

    assert outcome.code == 0, outcome.message


async def test_a_certificate_that_nobody_trusts_is_refused_at_once(store: Path, few: Path) -> None:
    tls = server_context(store.parent)
    async with serve_fake(store.parent / "spool", 3, tls=tls) as server:
        async with asyncio.timeout(PATIENCE_SECONDS):
            outcome = await run_here(store, server.url, server.spool.directory.path, few)

    assert outcome.code == 3
    assert "the server's certificate is not trusted" in outcome.message
    assert "--ca-cert" in outcome.message


async def test_a_certificate_for_another_name_is_refused(store: Path, few: Path) -> None:
    tls = server_context(store.parent)
    async with serve_fake(store.parent / "spool", 3, tls=tls, host="127.0.0.2") as server:
        outcome = await run_here(
            store,
            server.url,
            server.spool.directory.path,
            few,
            ca_cert=write_authority(store.parent),
        )

    assert outcome.code == 3
    assert "127.0.0.2" in outcome.message
    assert "a URL with the name that the certificate is for" in outcome.message


async def test_https_to_a_server_without_it_is_refused_at_once(store: Path, few: Path) -> None:
    async with serve_fake(store.parent / "spool", 3) as server:
        url = server.url.replace("http", "https")
        async with asyncio.timeout(PATIENCE_SECONDS):
            outcome = await run_here(store, url, server.spool.directory.path, few)

    assert outcome.code == 3
    assert "is it http instead of https?" in outcome.message


def test_a_certificate_file_that_is_none_is_wrong_input(tmp_path: Path) -> None:
    path = tmp_path / "authority.pem"

    with pytest.raises(InputError, match="--ca-cert"):
        read_access(None, path)
    path.write_text("no certificate")
    with pytest.raises(InputError, match="in PEM"):
        read_access(None, path)


def test_the_context_for_a_private_authority_checks_names_and_certificates(tmp_path: Path) -> None:
    context = read_access(None, write_authority(tmp_path)).tls

    assert context is not None
    assert context.check_hostname
    assert context.verify_mode is ssl.CERT_REQUIRED


def has_ipv6() -> bool:
    """Tell whether this machine's loopback speaks it; containers' often does not."""
    with socket.socket(socket.AF_INET6) as one:
        return one.connect_ex(("::1", 9)) != errno.EADDRNOTAVAIL


async def test_ipv6_works(store: Path, few: Path) -> None:
    if not has_ipv6():
        pytest.skip("no ::1 on this machine")
    async with serve_fake(store.parent / "spool", 3, host="::1") as server:
        outcome = await run_here(store, server.url, server.spool.directory.path, few)

    assert server.url.startswith("http://[::1]:")
    assert outcome.code == 0, outcome.message


async def test_proxies_of_the_environment_are_not_used(
    store: Path, few: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    async with serve_fake(store.parent / "spool", 3) as server:
        outcome = await run_here(store, server.url, server.spool.directory.path, few)

    assert outcome.code == 0, outcome.message


async def test_a_server_that_sends_elsewhere_is_refused_with_where(store: Path, few: Path) -> None:
    async with serve_fake(store.parent / "spool", 3, announced=False) as server:
        server.health_status = 308
        server.health_headers = {"Location": "https://elsewhere.example/health"}
        outcome = await run_here(store, server.url, server.spool.directory.path, few)

    assert outcome.code == 3
    assert "redirects (308) to https://elsewhere.example/health" in outcome.message


async def test_a_url_where_no_inference_server_is_gets_refused(
    store: Path, few: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(extraction.server_link, "STRANGE_SECONDS", 2.0)
    async with serve_fake(store.parent / "spool", 3) as server:
        server.health_status = 404
        async with asyncio.timeout(PATIENCE_SECONDS):
            outcome = await run_here(store, server.url, server.spool.directory.path, few)

    assert outcome.code == 3
    assert "/health has answered 404 for 2 s: no inference server is there" in outcome.message


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("http://me:sk-very-secret@127.0.0.1:1", "no user or password in a URL"),
        ("http://sk-very-secret@127.0.0.1:1=/tmp/spool", "no user or password in a URL"),
        ("http://127.0.0.1:99999999", "out of range"),
        ("ftp://127.0.0.1:1", "not a URL such as"),
        ("http://127.0.0.1:1?key", "not a URL such as"),
    ],
)
def test_a_url_with_a_secret_or_without_sense_is_wrong_input(
    tmp_path: Path, url: str, text: str
) -> None:
    import hsstore.cli  # noqa: F401, PLC0415  # registers the commands

    result = CliRunner().invoke(app, ["extract", str(tmp_path / "store"), "--server", url])

    assert result.exit_code == InputError.exit_code
    assert text in result.output
    assert KEY not in result.output
