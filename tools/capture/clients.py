"""The clients of `bench_capture`: the same prompts, asked for in three ways."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Final, TypeAlias

import aiohttp
import numpy as np

from extraction.requester import ServerBusyError
from extraction.spool import RequestId

if TYPE_CHECKING:
    from collections.abc import Awaitable, Iterable

    import numpy.typing as npt

    from extraction.server_link import ServerLink
    from extraction.session import Session
    from extraction.spool import Dump

    Tokens: TypeAlias = npt.NDArray[np.int32]

RUN: Final = "bench"
ALIEN: Final = "alien"
MOST_ATTEMPTS: Final = 20


class Clients:
    """Those who send the prompts."""

    def __init__(self, prompts: list[Tokens], session: Session) -> None:
        self._prompts = prompts
        self._session = session
        self._numbers = itertools.count()
        self.retries = 0
        """Captures that were given up because the server had no room, and asked for again."""
        self.answer_bytes: list[int] = []
        """JSON text of each round of stock HTTP."""
        self.answer_rows: list[int] = []
        """Rows in it: of a prompt in several chunks SGLang sends the last one only."""
        self.parse_seconds: list[float] = []
        """What it takes to parse it."""

    async def prefill(self, link: ServerLink) -> float:
        """Have everything computed and nothing captured."""
        return await _seconds(
            link.generate(str(rid), tokens.tolist()) for rid, tokens in self._named(ALIEN)
        )

    async def capture(self) -> float:
        """Take every dump."""
        return await _seconds(self._take(rid, tokens) for rid, tokens in self._named(RUN))

    async def stock_http(self, url: str) -> float:
        """Let SGLang send the states in its answers."""
        timeout = aiohttp.ClientTimeout(total=None)
        answers: list[bytes] = []
        async with aiohttp.ClientSession(f"{url}/", timeout=timeout, trust_env=False) as http:
            named = list(self._named(ALIEN))
            seconds = await _seconds(_states_of(http, *one, answers) for one in named)
        started = time.perf_counter()
        parts = [json.loads(answer)["meta_info"]["hidden_states"] for answer in answers]
        self.parse_seconds.append(time.perf_counter() - started)
        if not all(parts):
            raise RuntimeError(f"an answer without hidden states: {min(answers, key=len)[:500]!r}")
        self.answer_rows.append(sum(len(part[0]) for part in parts))
        self.answer_bytes.append(sum(map(len, answers)))
        return seconds

    def _named(self, run: str) -> Iterable[tuple[RequestId, Tokens]]:
        for tokens in self._prompts:
            yield RequestId(run, next(self._numbers), 0, len(tokens)), tokens

    async def _take(self, rid: RequestId, tokens: Tokens) -> None:
        for attempt in range(MOST_ATTEMPTS):
            rid = replace(rid, attempt=attempt)
            try:
                dump = await self._session.requester.fetch(rid, tokens)
                break
            except ServerBusyError:
                self.retries += 1
        else:
            raise RuntimeError(f"{rid}: no room in {MOST_ATTEMPTS} attempts")
        await asyncio.to_thread(read, dump, tokens)
        self._session.spool.give_back(rid)


async def _states_of(
    http: aiohttp.ClientSession, rid: RequestId, tokens: Tokens, answers: list[bytes]
) -> None:
    body = {
        "rid": str(rid),
        "input_ids": tokens.tolist(),
        # With no new token, SGLang collects the states and then sends none.
        "sampling_params": {"max_new_tokens": 1, "temperature": 0},
        "extra_key": str(rid),
        "return_hidden_states": True,
    }
    async with http.post("generate", json=body) as response:
        answer = await response.read()
        if not response.ok:
            raise RuntimeError(f"return_hidden_states: {response.status}: {answer[:500]!r}")
        answers.append(answer)


async def _seconds(work: Iterable[Awaitable[object]]) -> float:
    """Do all of it at once, and time it."""
    started = time.perf_counter()
    await asyncio.gather(*work)
    return time.perf_counter() - started


def read(dump: Dump, tokens: Tokens) -> None:
    """Read every byte of a dump, and close it.

    Raises
    ------
    RuntimeError
        It is of other tokens.
    """
    words = dump.hidden.reshape(-1).view(np.uint8)
    words[: len(words) // 8 * 8].view(np.uint64).max()
    same = np.array_equal(dump.input_ids, tokens)
    del words
    dump.close()
    if not same:
        raise RuntimeError(f"{dump.rid}: a dump of other tokens")
