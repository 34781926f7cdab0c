"""The way from a forward's tensors to a client that has read the dump, without a model."""

from __future__ import annotations

import itertools
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np
import torch

from extraction.spool import ClientInfo, RequestId, SpoolClient, SpoolServer
from hsstore_sglang.recorder import Recorder
from hsstore_sglang.slices import Piece
from hsstore_sglang.staging import Shape, Staging
from tools.capture.clients import RUN, read

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from extraction.spool import ServerInfo
    from tools.capture.clients import Tokens

IN_FLIGHT: Final = 4
"""Dumps that wait to be read, at most: their files are used again."""
FORWARDS_STAGED: Final = 4
PATIENCE_SECONDS: Final = 120.0
POLL_SECONDS: Final = 0.001


class HandOver:
    """The plugin's staging, recorder and spool, and a client, all warm from round to round.

    Parameters
    ----------
    info
        Of a real server: the dumps have its shape.
    chunk_rows
        Rows handed over at once, as by a forward.
    """

    def __init__(
        self, directory: Path, info: ServerInfo, prompts: Sequence[Tokens], chunk_rows: int
    ) -> None:
        self._prompts = prompts
        self._chunk_rows = chunk_rows
        dtype: torch.dtype = getattr(torch, info.dtype)
        shape = Shape(info.slots, info.hidden, dtype)
        self._aux = torch.randn(chunk_rows, (info.slots - 1) * info.hidden).to(dtype)
        self._final = torch.randn(chunk_rows, info.hidden).to(dtype)
        self._staging = Staging(
            FORWARDS_STAGED * shape.size_bytes(chunk_rows), shape, torch.device("cpu")
        )
        self._server = SpoolServer(directory)
        self._server.announce(replace(info, instance=self._server.instance))
        self._recorder = Recorder(self._server, self._staging)
        self._client = SpoolClient(directory, ClientInfo(RUN, "limit"))
        self._numbers = itertools.count()

    def run(self) -> float:
        """Hand the prompts over, one behind the other; returns seconds."""
        rids = [RequestId(RUN, next(self._numbers), 0, len(tokens)) for tokens in self._prompts]
        room = threading.Semaphore(IN_FLIGHT)
        started = time.perf_counter()
        with ThreadPoolExecutor(1) as pool:
            taken = pool.submit(self._take_all, rids, room)
            for rid, tokens in zip(rids, self._prompts, strict=True):
                if not room.acquire(timeout=PATIENCE_SECONDS):
                    break  # the client has failed, and says why
                self._feed(rid, tokens)
            taken.result()
        return time.perf_counter() - started

    def close(self) -> None:
        """Stop, and remove the spool."""
        self._recorder.close()
        self._client.cleanup(RUN)
        self._client.close()
        self._server.close()

    def _feed(self, rid: RequestId, tokens: Tokens) -> None:
        ids = torch.from_numpy(tokens)
        for start in range(0, len(tokens), self._chunk_rows):
            part = ids[start : start + self._chunk_rows]
            rows = len(part)
            # Half of the ring is free: a forward, at most a quarter, has room in one piece.
            while self._staging.ring.used_bytes() > self._staging.ring.size_bytes // 2:
                time.sleep(POLL_SECONDS)
            piece = Piece(str(rid), start, rows, 0, start + rows == len(tokens))
            self._recorder.record([piece], self._aux[:rows], self._final[:rows], part)
            self._recorder.forward_ended()

    def _take_all(self, rids: Sequence[RequestId], room: threading.Semaphore) -> None:
        for rid, tokens in zip(rids, self._prompts, strict=True):
            self._wait_for(rid)
            read(self._client.open_dump(rid), tokens)
            self._client.give_back(rid)
            room.release()

    def _wait_for(self, rid: RequestId) -> None:
        directory = self._client.directory
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not directory.finished(rid).exists():
            if directory.error(rid).exists():
                raise RuntimeError(f"the spool gave up: {self._client.take_error(rid)}")
            if time.monotonic() > deadline:
                raise TimeoutError(f"{rid}: no dump within {PATIENCE_SECONDS:.0f} s")
            time.sleep(POLL_SECONDS)


class Memcpy:
    """One thread that copies as many bytes, chunk by chunk, between two buffers."""

    def __init__(self, info: ServerInfo, prompts: Sequence[Tokens], chunk_rows: int) -> None:
        self._row_bytes = Shape(info.slots, info.hidden, getattr(torch, info.dtype)).row_bytes
        self._parts = [
            min(chunk_rows, len(tokens) - start)
            for tokens in prompts
            for start in range(0, len(tokens), chunk_rows)
        ]
        self._source = np.ones(chunk_rows * self._row_bytes, np.uint8)
        self._target = np.zeros_like(self._source)

    def run(self) -> float:
        """Copy; returns seconds."""
        started = time.perf_counter()
        for rows in self._parts:
            size = rows * self._row_bytes
            np.copyto(self._target[:size], self._source[:size])
        return time.perf_counter() - started
