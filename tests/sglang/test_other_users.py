"""A server of another user, behind an API key; server and client share the spool by a group."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from hsstore.store import Store
from tests.sglang.checks import check_tokens
from tests.sglang.evidence import check_store_equals_witness
from tests.sglang.models import make_llama
from tests.sglang.samples import draw_lengths, write_samples
from tests.sglang.serving import SglangServer, serving
from tests.sglang.strangers import as_user, directory_of, extract_behind, need_root

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SERVER_USER, CLIENT_USER, STRANGER, GROUP = 54_301, 54_302, 54_303, 54_400
"""Ids that no distribution hands out."""
KEY = "a-key-of-5-words"


@pytest.fixture(scope="module")
def server() -> Iterator[SglangServer]:
    """Serve as a user without privileges."""
    need_root()
    with (
        directory_of(SERVER_USER) as path,
        serving(
            make_llama(path / "llama", hidden=64),
            *("--layers", "0,2,4", "--spool-group", str(GROUP)),
            sglang=("--api-key", KEY),
            prefix=as_user(SERVER_USER, GROUP),
            user=SERVER_USER,
        ) as one,
    ):
        yield one


@pytest.fixture
def home() -> Iterator[Path]:
    """Give the client a directory of its own."""
    with directory_of(CLIENT_USER) as path:
        yield path


def test_a_client_in_the_group_fills_its_store(server: SglangServer, home: Path) -> None:
    data = write_samples(home / "data.jsonl", draw_lengths(40, 100))
    store = home / "store.zarr"

    ended = extract_behind(as_user(CLIENT_USER, GROUP), server, store, "--data", data, key=KEY)

    assert ended.code == 0, ended.log
    assert KEY not in ended.log
    opened = Store.open(store)
    check_tokens(opened, data)
    assert len(check_store_equals_witness(opened, server.witness)) == 40
    assert server.left_in_spool() == []
    assert {path.stat().st_uid for path in server.spool.iterdir()} == {SERVER_USER}
    assert server.spool.stat().st_gid == GROUP


@pytest.mark.parametrize("key", [None, "another-key"])
def test_a_wrong_key_is_refused_at_once(server: SglangServer, home: Path, key: str | None) -> None:
    data = write_samples(home / "data.jsonl", [20, 30])
    store = home / "store.zarr"

    ended = extract_behind(as_user(CLIENT_USER, GROUP), server, store, "--data", data, key=key)

    assert ended.code == 3, ended.log
    assert "HSSTORE_API_KEY" in ended.log
    assert not store.exists()


def test_a_user_outside_the_group_is_refused_with_the_reason(
    server: SglangServer, home: Path
) -> None:
    data = write_samples(home / "data.jsonl", [20, 30])
    os.chown(home, STRANGER, STRANGER)
    store = home / "store.zarr"

    ended = extract_behind(as_user(STRANGER, STRANGER), server, store, "--data", data, key=KEY)

    assert ended.code in {2, 3}, ended.log
    assert f"{server.spool}' is not readable" in ended.log or "group" in ended.log
    assert "Traceback" not in ended.log
    assert not store.exists()
