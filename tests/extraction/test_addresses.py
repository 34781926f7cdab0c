"""Which servers are named, on the command line and in a file; each with a spool of its own."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from extraction.addresses import ServerAddress, Servers, distinct, read_servers_file
from extraction.spool import default_spool
from hsstore.cli.options import server_addresses
from hsstore.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

A, B = "http://127.0.0.1:30000", "http://127.0.0.1:30001"


def test_a_file_names_a_server_a_line(tmp_path: Path) -> None:
    file = tmp_path / "servers.txt"
    file.write_text(f"# two of them\n\n  {A}\n{B}=/dev/shm/b   # with its spool\n")

    found = read_servers_file(file)

    assert found == (
        ServerAddress(url=A, spool=default_spool(30000)),
        ServerAddress(url=B, spool=Path("/dev/shm/b")),
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f"{A}\nftp://x\n", r"servers.txt, line 2 ftp://x: not a URL"),
        (f"{A}\nhttp://user:secret@x:1\n", r"line 2: no user or password in a URL"),
        ("http://x\n", r"line 1 http://x: no port, so its spool is needed"),
        (f"{A}=/s\n{B}=/s\n", f"{A} and {B} cannot share the spool /s"),
        (f"{A}=/s\n{A}=/t\n", f"{A} is given twice, with the spools /s and /t"),
    ],
)
def test_what_is_wrong_in_it_is_told_by_line(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "servers.txt"
    file.write_text(text)

    with pytest.raises(InputError, match=message) as caught:
        Servers((), file).read()

    assert "secret" not in str(caught.value)


def test_what_is_wrong_in_a_file_that_was_good_changes_nothing_and_is_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "servers.txt"
    file.write_text(f"{A}/=/s\n")
    servers = Servers((), file)
    good = servers.read()
    file.write_text("htt")

    assert good == (ServerAddress(url=A, spool=Path("/s")),)
    assert (servers.read(), servers.read()) == (good, good)
    assert len(caplog.messages) == 1
    assert caplog.messages[0].endswith(
        "line 1 htt: not a URL such as http://127.0.0.1:30000; nothing is changed"
    )


def test_a_mark_of_byte_order_is_no_part_of_the_first_url(tmp_path: Path) -> None:
    file = tmp_path / "servers.txt"
    file.write_bytes(b"\xef\xbb\xbfhttp://a:30000\r\nhttp://b:30001\r\n")
    assert [one.url for one in read_servers_file(file)] == ["http://a:30000", "http://b:30001"]


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"--servers-file .*No such file"):
        Servers((), tmp_path / "none").read()


def test_the_same_server_may_be_named_twice(tmp_path: Path) -> None:
    one = ServerAddress(url=A, spool=tmp_path / "s")

    assert distinct([one, one, ServerAddress(url=f"{A}/", spool=tmp_path / "s")]) == (one,)


@pytest.mark.parametrize(
    ("servers", "spool", "file", "message"),
    [
        (None, None, None, "no server is named"),
        ([A, B], Path("/s"), None, "--spool is of one server"),
        ([A], Path("/s"), Path("f"), "--spool is of one server"),
        (None, Path("/s"), Path("f"), "--spool is of one server"),
        ([A, "x"], None, None, "--server x: not a URL"),
    ],
)
def test_wrong_options_are_told(
    servers: Sequence[str] | None, spool: Path | None, file: Path | None, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        server_addresses(list(servers) if servers else None, spool, file)
