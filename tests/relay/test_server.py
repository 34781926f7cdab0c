"""What a relay answers to whom: tokens, versions, names from the wire, ranges, and who may come in."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest
import xxhash

import extraction.relay.held_spool
from extraction.relay.protocol import SESSION_HEADER, VERSION, VERSION_HEADER
from extraction.relay.serve import RelayOptions, relaying
from extraction.relay.token import read_token
from hsstore.errors import InputError
from tests.relay.given import CLIENT, TOKEN, capture, relay, request

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from extraction.spool import SpoolServer

LET_IN = {"Authorization": f"Bearer {TOKEN}", VERSION_HEADER: VERSION, SESSION_HEADER: "a-session"}


@asynccontextmanager
async def asking(
    spool: Path, headers: dict[str, str] | None = None, **options: object
) -> AsyncIterator[aiohttp.ClientSession]:
    """Talk to a relay, with a session open at it."""
    async with relay(spool, **options) as url:
        session = aiohttp.ClientSession(url, headers=LET_IN if headers is None else headers)
        async with session:
            yield session


async def hold(http: aiohttp.ClientSession) -> None:
    body = {"run": CLIENT.run, "store": CLIENT.store}
    async with http.post("/v1/session", json=body) as response:
        assert response.status == 200


async def get(http: aiohttp.ClientSession, path: str, **headers: str) -> tuple[int, Any]:
    async with http.get(path, headers=headers) as response:
        assert response.headers[VERSION_HEADER] == "1"
        is_json = response.content_type == "application/json"
        return response.status, await (response.json() if is_json else response.read())


@pytest.mark.parametrize("path", ["/v1/spool", "/v1/server", "/v1/dumps/x", "/", "/health/x"])
@pytest.mark.parametrize("header", [{}, {"Authorization": "Bearer wr\u00f6ng"}])
async def test_without_the_token_there_is_nothing_to_see(
    server: SpoolServer, path: str, header: dict[str, str]
) -> None:
    async with asking(server.directory.path, header) as http:
        status, answer = await get(http, path)
        assert (status, answer["error"]["kind"]) == (401, "token")
        assert "HSSTORE_RELAY_TOKEN" in answer["error"]["message"]
        assert TOKEN not in str(answer)
        assert (await get(http, "/health"))[0] == 200


async def test_another_version_is_refused_by_name(server: SpoolServer) -> None:
    async with asking(server.directory.path) as http:
        status, answer = await get(http, "/v1/spool", **{VERSION_HEADER: "7"})
        assert (status, answer["error"]["kind"]) == (400, "version")
        assert "version 1" in answer["error"]["message"]
        assert "client 7" in answer["error"]["message"]
        del http.headers[VERSION_HEADER]  # as a web page would ask
        assert (await get(http, "/v1/spool"))[1]["error"]["kind"] == "version"


@pytest.mark.parametrize(
    "name",
    ["..%2Fserver.json", "..%2f..%2fsecret", "server.json", "%2Fetc%2Fpasswd", "hs-a-1-1-10%00"],
)
async def test_only_request_ids_are_names(server: SpoolServer, name: str) -> None:
    (server.directory.path.parent / "secret").write_text("secret")
    async with asking(server.directory.path) as http:
        await hold(http)
        status, answer = await get(http, f"/v1/dumps/{name}")
        assert status in {400, 404}
        assert "secret" not in str(answer)
        for what in ({"discard": ["../secret"]}, {"give_back": "hs"}, {"discard": [None]}):
            async with http.post("/v1/release", json=what) as response:
                assert response.status == 400
    assert (server.directory.path.parent / "secret").exists()


async def test_a_range_is_sent_and_the_digest_is_that_of_the_whole(server: SpoolServer) -> None:
    rid = request(1, 2000)
    async with asking(server.directory.path) as http:
        assert (await get(http, f"/v1/dumps/{rid}"))[1]["error"]["kind"] == "lost"
        await hold(http)
        assert (await get(http, f"/v1/dumps/{rid}"))[1]["error"]["kind"] == "missing"
        capture(server, rid)
        content = server.directory.finished(rid).read_bytes()
        assert await get(http, f"/v1/dumps/{rid}") == (206, content)
        for start in (0, 1, 4097, len(content) - 1):
            got = await get(http, f"/v1/dumps/{rid}", Range=f"bytes={start}-")
            assert got == (206, content[start:])
        for odd in (f"bytes={len(content)}-", "bytes=-5", "bytes=0-5", "lines=1-"):
            assert (await get(http, f"/v1/dumps/{rid}", Range=odd))[0] == 400
        digest = xxhash.xxh3_128_hexdigest(content)
        said = {"size_bytes": len(content), "xxh3_128": digest}
        assert await get(http, f"/v1/dumps/{rid}/digest") == (200, said)


async def test_a_broken_connection_gives_way_to_runs_of_the_same_store_only(
    server: SpoolServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(extraction.relay.held_spool, "ORPHANED_SECONDS", -1.0)
    async with asking(server.directory.path) as http:
        await hold(http)  # and never listens
        found = []
        for store in ("another", CLIENT.store, "x" * 2000):
            body = {"run": "next", "store": store}
            other = {SESSION_HEADER: "another-session"}
            async with http.post("/v1/session", json=body, headers=other) as response:
                found.append(response.status)
        assert found == [409, 200, 400]


async def test_free_files_are_trimmed(server: SpoolServer) -> None:
    async with asking(server.directory.path) as http:
        await hold(http)
        capture(server, request(1))
        body = {"give_back": [str(request(1))]}
        for more, left in ({}, 1), ({"keep_free": 0}, 0):
            async with http.post("/v1/release", json=body | more) as response:
                assert response.status == 200
            assert len(list((server.directory.path / "free").iterdir())) == left


async def test_what_is_released_twice_is_no_error(server: SpoolServer) -> None:
    rid = request(1)
    async with asking(server.directory.path) as http:
        body = {"give_back": [str(rid)], "discard": [str(request(2))], "discard_runs": ["x"]}
        async with http.post("/v1/release", json=body) as response:
            assert response.status == 409
        await hold(http)
        capture(server, rid)
        for _ in range(2):
            async with http.post("/v1/release", json=body) as response:
                assert response.status == 200
        assert not server.directory.finished(rid).exists()
        for _ in range(2):
            async with http.delete("/v1/session") as response:
                assert response.status == 200


async def test_what_an_earlier_session_of_the_same_run_sent_changes_nothing_when_it_comes_late(
    server: SpoolServer,
) -> None:
    rid = request(1)
    async with asking(server.directory.path) as http:
        await hold(http)
        capture(server, rid)
        late = {SESSION_HEADER: "an-earlier-one"}
        body = {"give_back": [str(rid)], "discard": [str(rid)], "discard_runs": [CLIENT.run]}
        async with http.post("/v1/release", json=body, headers=late) as response:
            assert (response.status, (await response.json())["error"]["kind"]) == (409, "lost")
        async with http.delete("/v1/session", headers=late) as response:
            assert response.status == 200
        assert (await get(http, "/v1/spool"))[1]["holder"] == LET_IN[SESSION_HEADER]
    assert server.directory.finished(rid).exists()


async def test_news_come_at_once_and_quiet_is_waited_out(server: SpoolServer) -> None:
    loop = asyncio.get_running_loop()
    async with asking(server.directory.path) as http:
        await hold(http)
        _, listing = await get(http, "/v1/spool")
        asked = asyncio.create_task(get(http, f"/v1/spool?wait=60&seen={listing['seen']}"))
        await asyncio.sleep(0.2)
        assert not asked.done()
        capture(server, request(1))
        _, news = await asked
        assert [name for name, _ in news["finished"]] == [str(request(1))]
        began = loop.time()
        _, same = await get(http, f"/v1/spool?wait=0.3&seen={news['seen']}")
        assert loop.time() - began > 0.25
        assert same["seen"] == news["seen"]
        assert (await get(http, "/v1/spool?wait=nan"))[0] == 400


async def test_more_requests_than_allowed_are_told_to_come_later(server: SpoolServer) -> None:
    async with asking(server.directory.path, max_connections=1) as http:
        _, listing = await get(http, "/v1/spool")
        waiting = asyncio.create_task(get(http, f"/v1/spool?wait=60&seen={listing['seen']}"))
        await asyncio.sleep(0.2)
        status, answer = await get(http, "/v1/server")
        assert (status, answer["error"]["kind"]) == (503, "busy")
        capture(server, request(1))  # ends it
        assert (await waiting)[0] == 200
        assert (await get(http, "/v1/server"))[0] == 200


async def test_nobody_else_gets_in_without_a_token(room: Path) -> None:
    for host in ("0.0.0.0", "192.0.2.1", "somewhere"):  # refused
        with pytest.raises(InputError, match="needs a token"):
            async with relaying(RelayOptions(room, host=host)):
                pass
    async with (
        relaying(RelayOptions(room / "spool", port=0)) as url,
        aiohttp.ClientSession(url, headers={VERSION_HEADER: VERSION}) as http,
    ):
        assert (await get(http, "/v1/spool"))[0] == 200  # its own machine may
    assert TOKEN not in repr(RelayOptions(room, token=TOKEN))


def test_a_token_is_one_word_and_never_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HSSTORE_RELAY_TOKEN", raising=False)
    assert read_token(None, "--token-file") == ""
    monkeypatch.setenv("HSSTORE_RELAY_TOKEN", "from-there")
    assert read_token(None, "--token-file") == "from-there"
    file = tmp_path / "token"
    file.write_text("from-here\n")
    assert read_token(file, "--token-file") == "from-here"
    for wrong in ("", "two words", "line\nline", "\u00fc"):
        file.write_text(wrong)
        with pytest.raises(InputError, match="--token-file") as caught:
            read_token(file, "--token-file")
        assert not wrong or wrong not in str(caught.value)
    with pytest.raises(InputError, match="cannot read"):
        read_token(tmp_path / "none", "--token-file")
