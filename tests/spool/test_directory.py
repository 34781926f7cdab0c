"""Who may use a spool directory."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from extraction.spool import (
    ClientInfo,
    SpoolClient,
    SpoolForeignError,
    SpoolMissingError,
    SpoolServer,
    SpoolView,
    default_spool,
)

if TYPE_CHECKING:
    from pathlib import Path

    from extraction.spool import ServerInfo


def test_a_new_spool_is_private(server: SpoolServer, client: SpoolClient) -> None:
    path = server.directory.path

    assert path.stat().st_mode & 0o7777 == 0o700
    files = [entry for entry in path.iterdir() if entry.is_file()]
    assert {file.name for file in files} == {
        "server.lock",
        "server.json",
        "heartbeat",
        "client.lock",
        "client.json",
    }
    assert {file.stat().st_mode & 0o7777 for file in files} == {0o600}


def test_a_shared_spool_and_its_files_belong_to_the_group(
    spool_path: Path, info: ServerInfo
) -> None:
    group = os.getegid()

    with SpoolServer(spool_path, group=group) as server:
        server.announce(info)

        assert spool_path.stat().st_mode & 0o7777 == 0o2770
        assert (spool_path / "free").stat().st_mode & 0o7777 == 0o2770
        assert (spool_path / "server.json").stat().st_mode & 0o7777 == 0o660
        SpoolClient(spool_path, ClientInfo("ab", "store")).close()


def test_a_private_spool_is_not_taken_for_a_shared_one(server: SpoolServer) -> None:
    with pytest.raises(SpoolForeignError, match="not shared with group"):
        SpoolServer(server.directory.path, group=os.getegid())


@pytest.mark.parametrize("mode", [0o755, 0o777, 0o770, 0o701])
def test_a_spool_that_lets_others_in_is_refused(spool_path: Path, mode: int) -> None:
    spool_path.mkdir()
    spool_path.chmod(mode)

    with pytest.raises(SpoolForeignError, match=f"mode {mode:o}"):
        SpoolServer(spool_path)
    with pytest.raises(SpoolForeignError, match=f"mode {mode:o}"):
        SpoolView(spool_path)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
def test_somebody_elses_spool_is_refused(spool_path: Path) -> None:
    spool_path.mkdir(mode=0o700)
    os.chown(spool_path, 12345, -1)

    with pytest.raises(SpoolForeignError, match="owner 12345"):
        SpoolView(spool_path)


def test_a_symbolic_link_is_refused(spool_path: Path, server: SpoolServer) -> None:
    link = spool_path.with_name("link")
    link.symlink_to(spool_path)

    with pytest.raises(SpoolForeignError, match="not a directory"):
        SpoolView(link)


def test_a_spool_that_anyone_could_replace_is_refused(server: SpoolServer) -> None:
    server.directory.path.parent.chmod(0o777)

    with pytest.raises(SpoolForeignError, match="world-writable"):
        SpoolView(server.directory.path)


def test_a_missing_spool_says_what_to_do(spool_path: Path) -> None:
    with pytest.raises(SpoolMissingError, match="start the server"):
        SpoolView(spool_path)


def test_a_clean_end_of_both_sides_leaves_nothing(spool_path: Path, info: ServerInfo) -> None:
    server = SpoolServer(spool_path)
    server.announce(info)
    client = SpoolClient(spool_path, ClientInfo("ab", "store"))

    server.close()
    assert spool_path.exists()
    client.close()

    assert not spool_path.exists()


def test_the_default_spool_is_in_shared_memory_by_user_and_port() -> None:
    assert str(default_spool(30000)) == f"/dev/shm/hsstore-{os.geteuid()}/30000"
