"""Open blocks: checked dumps go in, commits come out.

One thread does all that touches the output file system, in order; a pool encodes. The event loop
only hands over and is told when it is done, so a disk that stands still never stops it.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from extraction.spool import DumpInUseError
from hsstore.writer import BlockWriter

if TYPE_CHECKING:
    import numpy.typing as npt

    from extraction.spool import Dump, RequestId
    from hsstore.claims import Claims
    from hsstore.layout import Block
    from hsstore.spec import FailureReason
    from hsstore.store import Store


RELEASE_TRIES = 1000
RELEASE_SECONDS = 0.001


@dataclass(slots=True)
class OpenBlock:
    """A block that is being filled."""

    block: Block
    tokens: dict[int, npt.NDArray[np.int32]]
    """What to ask for, by sample."""
    waiting: set[int]
    """Samples that are neither in nor given up."""
    held: dict[int, RequestId] = field(default_factory=dict)
    """Samples that are appended, oldest first; their dumps stay in the spool until the commit,
    unless their memory is needed."""
    appended: set[int] = field(default_factory=set)
    """Samples that are appended and not committed."""
    failed: dict[int, FailureReason] = field(default_factory=dict)
    """Samples that are given up, and that is not committed."""
    writer: BlockWriter | None = None
    committing: asyncio.Task[None] | None = None
    parked: bool = False
    """Committed in part while samples are still missing; counts as open no more."""
    changed_at_seconds: float = 0.0
    """Loop time of the last append."""


@dataclass(slots=True)
class _Item:
    open_block: OpenBlock
    sample: int
    dump: Dump
    done: asyncio.Future[None]


class BlockSink:
    """Appends samples to open blocks and commits them.

    Parameters
    ----------
    encode_threads : int
        Chunks that are encoded at once.
    """

    def __init__(self, store: Store, claims: Claims, run: str, encode_threads: int) -> None:
        self._store = store
        self._claims = claims
        self._run = run
        self._encoders = ThreadPoolExecutor(encode_threads, thread_name_prefix="encode")
        self._disk = ThreadPoolExecutor(1, thread_name_prefix="disk")
        self._queue: list[_Item] = []
        self._pump: asyncio.Task[None] | None = None
        self.committed_samples: list[int] = []
        """In the order of their commits."""
        self.bytes_committed = 0
        """Raw bytes of these samples."""
        self.bytes_stored = 0
        """Their encoded bytes."""

    @property
    def committed(self) -> int:
        """Count the samples committed."""
        return len(self.committed_samples)

    async def append(self, open_block: OpenBlock, sample: int, dump: Dump) -> None:
        """Append one checked dump; returns when it is written and its mapping is dropped.

        Goes through even when the caller is cancelled: what has arrived is not thrown away.

        Raises
        ------
        OutputError
        """
        loop = asyncio.get_running_loop()
        item = _Item(open_block, sample, dump, loop.create_future())
        self._queue.append(item)
        if self._pump is None or self._pump.done():
            self._pump = asyncio.create_task(self._drain())
        await asyncio.shield(item.done)

    async def settle(self) -> None:
        """Wait until everything that was handed over is written."""
        if self._pump is not None:
            await self._pump

    async def commit(self, open_block: OpenBlock) -> None:
        """Commit what the block holds; goes through even when the caller is cancelled.

        Raises
        ------
        OutputError, RefusedError
        """
        while open_block.appended or open_block.failed or open_block.committing:
            if open_block.committing is None:
                open_block.committing = asyncio.create_task(self._commit(open_block))
            task = open_block.committing
            # A failed commit stays here, so that whoever comes next learns of it too.
            await asyncio.shield(task)
            if open_block.committing is task:
                open_block.committing = None

    async def discard(self, open_block: OpenBlock) -> None:
        """Forget what is appended and not committed: those samples stay pending."""
        await self.settle()
        if open_block.committing is not None:
            await asyncio.wait({open_block.committing})
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._disk, _drop_writer, open_block)
        open_block.appended.clear()

    async def withdraw(self, samples: list[int]) -> None:
        """Make samples that were committed pending again.

        Raises
        ------
        OutputError, RefusedError
        """
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._disk, self._withdraw_in_thread, np.array(samples, int))
        taken_back = set(samples)
        self.committed_samples = [s for s in self.committed_samples if s not in taken_back]

    def _withdraw_in_thread(self, samples: npt.NDArray[np.int64]) -> None:
        for span in np.unique(samples // self._store.spec.layout.span_samples).tolist():
            self._claims.check(span)
        self._store.withdraw(samples)

    def close(self) -> None:
        """End the threads. Does not wait for a disk that does not answer."""
        self._disk.shutdown(wait=False, cancel_futures=True)
        self._encoders.shutdown(wait=False, cancel_futures=True)

    async def _drain(self) -> None:
        loop = asyncio.get_running_loop()
        while self._queue:
            # All that has come meanwhile is one batch: its chunks are encoded side by side.
            batch, self._queue = self._queue, []
            try:
                await loop.run_in_executor(self._disk, self._append_batch, batch)
            except Exception as error:  # noqa: BLE001  # every waiter gets it
                for item in batch:
                    item.open_block.appended.clear()  # its writer is gone: they stay pending
                    _fail(item.done, error)
            else:
                for item in batch:
                    item.open_block.appended.add(item.sample)
                    item.open_block.changed_at_seconds = loop.time()
                    item.done.set_result(None)

    def _append_batch(self, batch: list[_Item]) -> None:
        try:
            for item in batch:
                writer = item.open_block.writer = self._writer(item.open_block)
                writer.append(item.sample, payload_bits(item.dump, self._store.bits))
            for item in batch:
                self._writer(item.open_block).flush()
        except BaseException:
            for item in batch:
                _drop_writer(item.open_block)
                with contextlib.suppress(DumpInUseError):  # an encoder may still read it
                    item.dump.close()
            raise
        for item in batch:
            _close(item.dump)

    def _writer(self, open_block: OpenBlock) -> BlockWriter:
        if open_block.writer is not None:
            return open_block.writer
        writer = self._new_writer(open_block.block)
        samples = open_block.block.samples
        complete = self._store.completion(slice(samples.start, samples.stop)).complete
        earlier = np.flatnonzero(complete) + samples.start
        if earlier.size:
            lengths = self._store.length[earlier].tolist()
            writer.copy(earlier.tolist(), self._store.payload, lengths)
            self.bytes_stored -= writer.bytes_written  # the commit adds all; these are not new
        return writer

    def _new_writer(self, block: Block) -> BlockWriter:
        return BlockWriter(
            self._store.path,
            self._store.layout,
            self._store.codec,
            block,
            run=self._run,
            encoders=self._encoders,
        )

    async def _commit(self, open_block: OpenBlock) -> None:
        failed = dict(open_block.failed)
        loop = asyncio.get_running_loop()
        try:
            committed = await loop.run_in_executor(
                self._disk, self._commit_in_thread, open_block, failed
            )
        except Exception:
            open_block.appended.clear()
            raise
        open_block.appended -= committed
        row_bytes = self._store.spec.geometry.row_bytes
        self.bytes_committed += sum(open_block.tokens[s].size for s in committed) * row_bytes
        for sample in failed:
            open_block.failed.pop(sample)
        self.committed_samples += sorted(committed)

    def _commit_in_thread(
        self, open_block: OpenBlock, failed: dict[int, FailureReason]
    ) -> set[int]:
        span = open_block.block.span
        writer = open_block.writer or self._new_writer(open_block.block)
        open_block.writer = None
        try:
            committed = self._store.commit(writer, failed, lambda: self._claims.check(span))
        except BaseException:
            writer.discard()
            raise
        self.bytes_stored += writer.bytes_written
        return committed


def _drop_writer(open_block: OpenBlock) -> None:
    if open_block.writer is not None:
        open_block.writer.discard()
        open_block.writer = None


def _close(dump: Dump) -> None:
    """Drop a dump's mapping, once its encoders have let go of it."""
    for _ in range(RELEASE_TRIES):
        try:
            dump.close()
        except DumpInUseError:
            # A future has its result before its thread forgets the arguments.
            time.sleep(RELEASE_SECONDS)
        else:
            return
    dump.close()


def payload_bits(dump: Dump, bits: np.dtype[Any]) -> npt.NDArray[Any]:
    """Return the raw bits of a dump's states, shape (T, slots, hidden), without a copy."""
    return dump.hidden.view(bits)


def _fail(future: asyncio.Future[None], error: Exception) -> None:
    future.set_exception(error)
    future.exception()  # the waiter may be cancelled: an unread exception must not be logged
