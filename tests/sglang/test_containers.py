"""Server and client in containers of their own, https between them; they share /dev/shm alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from hsstore.store import Store
from tests.extraction.tls import CERTIFICATE, KEY, write_authority
from tests.sglang.checks import check_tokens
from tests.sglang.evidence import check_store_equals_witness
from tests.sglang.samples import draw_lengths, write_samples
from tests.sglang.serving import SglangServer, serving
from tests.sglang.strangers import (
    IN_A_CONTAINER,
    extract_behind,
    need_root,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(scope="module")
def certificates(room: Path) -> tuple[Path, Path, Path]:
    """Give a private CA, and a certificate and key of the server."""
    authority = write_authority(room)
    certificate, key = room / "server.pem", room / "server.key"
    certificate.write_text(CERTIFICATE)
    key.write_text(KEY)
    return authority, certificate, key


@pytest.fixture(scope="module")
def server(tiny_llama: Path, certificates: tuple[Path, Path, Path]) -> Iterator[SglangServer]:
    """Serve from a container, with TLS."""
    need_root()
    _, certificate, key = certificates
    tls = ("--ssl-certfile", str(certificate), "--ssl-keyfile", str(key))
    with serving(tiny_llama, "--layers", "0,2,4", sglang=tls, prefix=IN_A_CONTAINER) as one:
        yield one


def test_a_client_in_another_container_fills_its_store_over_https(
    server: SglangServer, certificates: tuple[Path, Path, Path], new_store: Path, room: Path
) -> None:
    data = write_samples(room / "containers.jsonl", draw_lengths(40, 100))
    options = ("--data", data, "--ca-cert", certificates[0])

    ended = extract_behind(IN_A_CONTAINER, server, new_store, *options)

    assert server.url.startswith("https://")
    assert ended.code == 0, ended.log
    opened = Store.open(new_store)
    check_tokens(opened, data)
    assert len(check_store_equals_witness(opened, server.witness)) == 40
    assert server.left_in_spool() == []


def test_a_second_client_is_refused_though_it_cannot_see_the_first_ones_process(
    server: SglangServer, certificates: tuple[Path, Path, Path], new_store: Path, room: Path
) -> None:
    from extraction.spool import ClientInfo, SpoolClient  # noqa: PLC0415

    data = write_samples(room / "second.jsonl", [20])
    options = ("--data", data, "--ca-cert", certificates[0])
    with SpoolClient(server.spool, ClientInfo("first", "store")):
        ended = extract_behind(IN_A_CONTAINER, server, new_store, *options)

    assert ended.code == 3, ended.log
    assert "client.lock is held by another process: {'run': 'first'" in ended.log


def test_a_certificate_of_an_unknown_authority_is_refused_at_once(
    server: SglangServer, new_store: Path, room: Path
) -> None:
    data = write_samples(room / "untrusted.jsonl", [20])

    ended = extract_behind((), server, new_store, "--data", data)

    assert ended.code == 3, ended.log
    assert "--ca-cert" in ended.log
    assert not new_store.exists()
