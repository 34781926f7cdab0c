"""What Google Cloud Storage has otherwise than S3: parts in order, generations, and credentials of its own."""

from __future__ import annotations

import json
import pickle
import socket
import subprocess
import sys
from contextlib import suppress
from threading import Thread
from typing import TYPE_CHECKING

import pytest

from hsstore.errors import InputError, UnreachableError
from hsstore.location import RemotePath
from hsstore.objects import Request, read
from hsstore.objects.client import forget
from hsstore.objects.puts import ABSENT, ConflictError, Put
from hsstore.objects.write import Upload, head, put, put_many
from tests.objects.s3 import SECRET

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.objects.s3 import Google

UNIT = 256 << 10
"""Bytes; an upload has a multiple of this before its end."""
SIZES = [1, UNIT, 3 * UNIT - 1, 0, 2 * UNIT + 7]


@pytest.fixture
def stranger(gs: Google, monkeypatch: pytest.MonkeyPatch, directory: Path) -> Iterator[Path]:
    """Name a file of credentials that is not there."""
    file = directory / "account.json"
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(file))
    forget()
    yield file
    forget()


def pieces() -> list[bytes]:
    return [bytes([number + 1]) * size for number, size in enumerate(SIZES)]


def upload(url: str, parts: list[bytes], replaces: str = ABSENT) -> Upload:
    begun = Upload(url, replaces=replaces)
    for part in parts:
        begun.part(lambda part=part: part)  # type: ignore[misc]
    return begun


def content(url: str) -> bytes:
    return read(Request(url)).data


@pytest.mark.parametrize("count", [2, 4, 5])
def test_parts_of_any_size_come_in_order_and_what_fills_no_unit_comes_at_the_end(
    gs: Google, count: int
) -> None:
    """Of four parts the last one is empty, so that the end has bytes of one before."""
    url = gs.new()
    sent = upload(url, pieces()[:count]).finish()
    before = [one["query"] for one in gs.requests() if one["method"] == "PUT"]

    pickle.loads(pickle.dumps(sent)).complete()

    assert content(url) == b"".join(pieces()[:count])
    assert [query.startswith("partNumber") for query in before] == [True] * len(before)
    assert len(before) == {2: 1, 4: 2, 5: 3}[count]


def test_an_upload_that_ends_with_a_unit_is_completed_without_bytes(gs: Google) -> None:
    url = gs.new()
    upload(url, [b"a" * UNIT]).finish().complete()
    assert content(url) == b"a" * UNIT


def test_an_upload_of_nothing_is_an_empty_object(gs: Google) -> None:
    url = gs.new()
    upload(url, [b""]).finish().complete()
    found = head(url)
    assert found is not None
    assert found.size_bytes == 0


@pytest.mark.parametrize("what", ["half", "after", "reset", 503])
def test_what_was_taken_in_part_is_sent_again_and_counted_once(gs: Google, what: int | str) -> None:
    url = gs.new()
    gs.fail(what, "PUT .*partNumber", times=3)

    upload(url, [b"a" * 8 * UNIT, b"b" * 4 * UNIT, b"c"]).finish().complete()

    assert gs.unused_faults() == 0
    assert content(url) == b"a" * 8 * UNIT + b"b" * 4 * UNIT + b"c"


def test_a_part_that_fails_keeps_those_behind_it_back(gs: Google) -> None:
    url = gs.new()
    gs.fail(403, "partNumber=1", times=1)
    with pytest.raises(InputError, match=r"forbidden \(403\).*storage.objects.create"):
        upload(url, [b"a" * UNIT] * 3).finish()

    assert not [one for one in gs.requests() if "partNumber=2" in one["query"]]


@pytest.mark.parametrize("name", ["partNumber=1", "POST .*uploadId"])
def test_bytes_of_an_upload_that_arrive_otherwise_are_no_object(gs: Google, name: str) -> None:
    """Its parts are not here any more: the run ends, and the same command sends them again."""
    url = gs.new()
    version = put(url, b"before", replaces=ABSENT)
    gs.fail("corrupt", name, times=1)
    sent = upload(url, [b"a" * UNIT, b"b"], version).finish()

    with pytest.raises(UnreachableError, match=r"what arrived is not what was sent.*CRC32C"):
        sent.complete()

    assert content(url) == b"before"


def test_an_end_whose_answer_is_lost_is_found_though_its_session_is_forgotten(gs: Google) -> None:
    url = gs.new()
    sent = upload(url, [b"a" * UNIT, b"b"]).finish()
    gs.fail_all([{"what": what, "where": "POST .*uploadId", "times": 1} for what in ("after", 410)])

    version = sent.complete()

    assert gs.unused_faults() == 0
    assert read(Request(url)).version == version


@pytest.mark.parametrize("status", [404, 410, 499])
def test_a_session_that_is_gone_is_said(gs: Google, status: int) -> None:
    url = gs.new()
    gs.fail(status, "partNumber=1", times=1)
    with pytest.raises(ConflictError, match=f"what was sent of {url} is gone"):
        upload(url, [b"a" * UNIT]).finish()


def test_the_same_bytes_have_another_generation(gs: Google) -> None:
    """So nothing that is under way comes behind what was taken back, in whatever form it was put."""
    url = gs.new()
    first = put(url, b"bits", replaces=ABSENT)
    second = put(url, b"bits", replaces=first)
    third = upload(url, [b"bits"], second).finish().complete()

    assert len({first, second, third}) == 3
    with pytest.raises(ConflictError):
        put(url, b"bits", replaces=first)


def test_what_is_put_is_kept_by_no_cache(gs: Google) -> None:
    """What everybody may read comes from Google's own caches, else, for an hour."""
    whole, parts = gs.new(), gs.new()
    put(whole, b"a", replaces=ABSENT)
    upload(parts, [b"a"]).finish().complete()
    assert [gs.resource(url)["cacheControl"] for url in (whole, parts)] == ["no-store"] * 2


# --- credentials --------------------------------------------------------------------------------


def test_credentials_that_come_later_are_used(
    gs: Google, stranger: Path, google: tuple[str, Path]
) -> None:
    url = gs.new()
    with pytest.raises(InputError, match=r"there are no credentials: .*was not found"):
        head(url)

    stranger.write_bytes(google[1].read_bytes())

    assert head(url) is None


def test_an_account_that_is_no_account_is_refused_and_not_repeated(
    gs: Google, stranger: Path
) -> None:
    stranger.write_text(json.dumps({"type": "service_account", "private_key": SECRET}))
    with pytest.raises(InputError, match="cannot read gs://") as refused:
        head(gs.new())
    assert SECRET not in str(refused.value)


def test_a_token_that_cannot_be_had_now_is_asked_for_again(
    gs: Google, stranger: Path, google: tuple[str, Path]
) -> None:
    account = json.loads(google[1].read_text()) | {"token_uri": "http://127.0.0.1:1/token"}
    stranger.write_text(json.dumps(account))
    with pytest.raises(UnreachableError, match=r"TransportError.*tried 9 times"):
        head(gs.new())


def test_many_requests_wait_for_one_token(
    gs: Google, stranger: Path, google: tuple[str, Path]
) -> None:
    """Each would wait for its own, one after the other, where whoever gives tokens hangs."""
    asked = 0

    def count() -> None:
        nonlocal asked
        with suppress(OSError):
            while True:
                listening.accept()[0].close()
                asked += 1

    with socket.create_server(("127.0.0.1", 0)) as listening:
        token_uri = f"http://127.0.0.1:{listening.getsockname()[1]}/token"
        stranger.write_text(
            json.dumps(json.loads(google[1].read_text()) | {"token_uri": token_uri})
        )
        counting = Thread(target=count)
        counting.start()
        with pytest.raises(UnreachableError, match=r"tried 9 times"):
            put_many([Put(gs.new(), b"", ABSENT) for _ in range(16)])
        listening.shutdown(socket.SHUT_RDWR)
    counting.join()

    assert 9 <= asked < 16 * 9 / 2


def test_another_server_needs_no_credentials(
    gs: Google, stranger: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS")
    with pytest.raises(InputError, match=r"\(401\): Invalid Credentials; see the credentials"):
        head(gs.new())


def test_a_proxy_of_the_environment_is_asked_and_no_netrc(
    gs: Google, stranger: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    netrc = stranger.with_name("netrc")
    netrc.write_text(f"default login somebody password {SECRET}\n")
    monkeypatch.setenv("NETRC", str(netrc))
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    with pytest.raises(UnreachableError, match=r"127\.0\.0\.1:1.*tried 9 times"):
        head(gs.new())

    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with pytest.raises(InputError, match=r"\(401\)"):
        head(gs.new())

    assert {one["authorization"] for one in gs.requests()} == {""}


@pytest.mark.parametrize("status", [400, 403, 404])
def test_an_upload_that_is_not_open_any_more_need_not_be_ended(gs: Google, status: int) -> None:
    begun = Upload(gs.new(), replaces=ABSENT)
    gs.fail(status, "DELETE ", times=1)
    begun.abort()
    assert gs.unused_faults() == 0


def test_what_lets_write_is_in_no_message(gs: Google) -> None:
    url = gs.new()
    gs.fail("reset", "partNumber=1", times=10_000)
    begun = upload(url, [b"a" * UNIT])
    with pytest.raises(UnreachableError) as away:
        begun.finish()
    gs.fail(403, "partNumber=1", times=1)
    other = upload(url, [b"a" * UNIT])
    with pytest.raises(InputError) as refused:
        other.finish()

    for text in (str(away.value), str(refused.value), repr(begun._upload)):
        assert "upload_id" not in text


def test_a_process_ends_quietly(gs: Google) -> None:
    """A session that is still open then would be told on stderr."""
    url = gs.new()
    program = f"""
from hsstore.objects.client import forget
from hsstore.objects.write import head
for _ in range(2):
    head({url!r})
    forget()
head({url!r})
"""
    command = [sys.executable, "-W", "always::ResourceWarning", "-c", program]
    done = subprocess.run(command, capture_output=True, check=True, text=True)
    assert done.stderr == ""


def test_a_listing_names_objects_by_what_follows_and_no_folders(gs: Google) -> None:
    root = RemotePath(gs.new("a b"))
    for name in ("x/+1", "x/ü", "y/"):
        gs.write(str(root / name), b"12")
    assert root.find() == {"x/+1": 2, "x/ü": 2}
    assert (root / "x/ü").read_bytes() == b"12"
