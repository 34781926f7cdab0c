"""Open blocks: checked dumps go in, commits come out.

One thread writes shards, in order, and a pool encodes. Another thread commits, or a few where the
store is in an object store, so that no fsync holds up the samples that come next. The event loop
only hands over and is told when it is done, so a disk that stands still never stops it.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from array import array
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np

from extraction.spool import DumpInUseError
from extraction.withdrawal import withdraw
from hsstore.errors import UnreachableError
from hsstore.writer import BlockWriter

if TYPE_CHECKING:
    import numpy.typing as npt

    from extraction.spool import Dump, RequestId
    from hsstore.claims import Claims
    from hsstore.layout import Block
    from hsstore.spec import FailureReason
    from hsstore.store import Store


REMOTE_COMMITS = 4
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
    sealed: Future[set[int]] | None = None
    """The latest commit, from the moment when it took `writer`; known to the writing thread only."""
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
    digest: int | None
    done: asyncio.Future[None]
    writer: BlockWriter | None = None


class BlockSink:
    """Appends samples to open blocks and commits them.

    Parameters
    ----------
    encode_threads : int
        Chunks that are encoded at once.
    stage : Path, optional
        Where what goes to an object store lies meanwhile.

    Attributes
    ----------
    checkers : Executor
        For the checks of dumps: few threads, as a check takes a sixth of the time of encoding, and
        more would only take the processors from the encoders.
    """

    def __init__(
        self,
        store: Store,
        claims: Claims,
        run: str,
        encode_threads: int,
        stage: Path | None = None,
    ) -> None:
        self._store = store
        self._claims = claims
        self._run = run
        self._stage = stage
        self.checkers = ThreadPoolExecutor(-(-encode_threads // 4), thread_name_prefix="check")
        self._encoders = ThreadPoolExecutor(encode_threads, thread_name_prefix="encode")
        self._disk = ThreadPoolExecutor(1, thread_name_prefix="disk")
        # An object store takes long to answer, and many at once.
        commits = 1 if isinstance(store.location, Path) else REMOTE_COMMITS
        self._committer = ThreadPoolExecutor(commits, thread_name_prefix="commit")
        self._counting = Lock()
        self._queue: deque[_Item] = deque()
        self._unfinished: deque[_Item] = deque()
        """Appended, and not all chunks are written: of the writing thread."""
        self._pump: asyncio.Task[None] | None = None
        self.committed_samples = array("q")
        """In the order of their commits."""
        self.bytes_committed = 0
        """Raw bytes of these samples."""
        self.bytes_stored = 0
        """Their encoded bytes."""
        self._away: UnreachableError | None = None
        """Of the object store. Whoever comes next gets it at once, and what is open is given up without a
        request: each would try for minutes, block by block."""

    @property
    def committed(self) -> int:
        """Count the samples committed."""
        return len(self.committed_samples)

    async def append(
        self, open_block: OpenBlock, sample: int, dump: Dump, digest: int | None = None
    ) -> None:
        """Append one checked dump; returns when it is written and its mapping is dropped.

        Goes through even when the caller is cancelled: what has arrived is not thrown away.

        Parameters
        ----------
        digest : int, optional
            Of its states, where the check has read them.

        Raises
        ------
        OutputError
        """
        loop = asyncio.get_running_loop()
        item = _Item(open_block, sample, dump, digest, loop.create_future())
        self._queue.append(item)
        if self._pump is None or self._pump.done():
            self._pump = asyncio.create_task(self._drain())
        await asyncio.shield(item.done)

    async def settle(self) -> None:
        """Wait until everything that was handed over is written."""
        if self._pump is not None:
            await self._pump

    async def commit(self, open_block: OpenBlock) -> None:
        """Commit what the block holds now; goes through even when the caller is cancelled.

        What others append meanwhile is left to the next commit: they may go on for long.

        Raises
        ------
        OutputError, RefusedError
        """
        held = set(open_block.appended)
        while held & open_block.appended or open_block.failed or open_block.committing:
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
        await loop.run_in_executor(self._disk, self._drop_writer, open_block)
        open_block.appended.clear()

    async def withdraw(self, samples: array[int]) -> list[int]:
        """Make samples that were committed pending again, as far as their spans can be had.

        Returns
        -------
        list of int
            Those that are complete still: another worker has their spans.

        Raises
        ------
        OutputError
        """
        loop = asyncio.get_running_loop()
        indices = np.array(samples, np.int64)
        left = await loop.run_in_executor(
            self._committer, withdraw, self._store, self._claims, indices
        )
        taken_back = set(samples) - set(left)
        kept = (s for s in self.committed_samples if s not in taken_back)
        self.committed_samples = array("q", kept)
        return left

    def close(self) -> None:
        """End the threads. Does not wait for a disk that does not answer."""
        self._disk.shutdown(wait=False, cancel_futures=True)
        self._committer.shutdown(wait=False, cancel_futures=True)
        self._encoders.shutdown(wait=False, cancel_futures=True)
        self.checkers.shutdown(wait=False, cancel_futures=True)

    async def _drain(self) -> None:
        loop = asyncio.get_running_loop()
        while self._queue or self._unfinished:
            item = self._queue.popleft() if self._queue else None
            try:
                await loop.run_in_executor(self._disk, self._append, item)
            except Exception as error:  # noqa: BLE001  # everyone whom it concerns gets it
                # Mostly by `_append` itself, unless that is what is broken: nobody must wait for ever.
                await loop.run_in_executor(self._disk, self._lose_unfinished, error)
                if item is not None and not item.done.done():
                    _tell_lost(item, error)

    def _append(self, item: _Item | None) -> None:
        """Append one sample, then finish the one before, whose last chunks were encoded meanwhile.

        With nothing to append all are finished.
        """
        if item is not None:
            self._unfinished.append(item)
            try:
                self._refuse_if_away()
                writer = item.open_block.writer = item.writer = self._writer(item.open_block)
                # No name for these bits: it would keep the dump mapped.
                bits = self._store.bits
                writer.append(item.sample, payload_bits(item.dump, bits), item.digest)
            except BaseException as error:
                self._lose_unfinished(error)
                raise
        self._finish(all_but=0 if item is None else 1)

    def _finish(self, *, all_but: int = 0) -> None:
        """Write the last chunks of samples that were appended, and tell that they are in."""
        try:
            while len(self._unfinished) > all_but:
                item = self._unfinished[0]
                if item.writer is not None:
                    item.writer.flush(item.sample)
                _close(item.dump)
                self._unfinished.popleft()
                item.done.get_loop().call_soon_threadsafe(_tell_appended, item)
        except BaseException as error:
            self._lose_unfinished(error)
            raise

    def _lose_unfinished(self, error: BaseException) -> None:
        """Give up the blocks of samples that are not finished, and tell those who wait for them."""
        self._note(error)
        for item in self._unfinished:
            self._drop_writer(item.open_block)
            with contextlib.suppress(DumpInUseError):  # an encoder may still read it
                item.dump.close()
            item.done.get_loop().call_soon_threadsafe(_tell_lost, item, error)
        self._unfinished.clear()

    def _writer(self, open_block: OpenBlock) -> BlockWriter:
        if open_block.writer is not None:
            return open_block.writer
        if open_block.sealed is not None:
            # Its files have the same names, and what it commits is to be copied.
            wait([open_block.sealed])
        writer = self._new_writer(open_block.block)
        samples = open_block.block.samples
        complete = self._store.completion(slice(samples.start, samples.stop)).complete
        earlier = np.flatnonzero(complete) + samples.start
        if earlier.size:
            lengths = self._store.length[earlier].tolist()
            writer.copy(earlier.tolist(), self._store.payload, lengths)
        return writer

    def _new_writer(self, block: Block) -> BlockWriter:
        return BlockWriter(
            self._store.location,
            self._store.layout,
            self._store.codec,
            block,
            run=self._run,
            encoders=self._encoders,
            stage=self._stage,
        )

    async def _commit(self, open_block: OpenBlock) -> None:
        failed = dict(open_block.failed)
        loop = asyncio.get_running_loop()
        try:
            sealed = await loop.run_in_executor(self._disk, self._seal, open_block, failed)
            committed = await asyncio.wrap_future(sealed)
        except Exception:
            open_block.appended.clear()
            raise
        open_block.appended -= committed
        row_bytes = self._store.spec.geometry.row_bytes
        self.bytes_committed += sum(open_block.tokens[s].size for s in committed) * row_bytes
        for sample in failed:
            open_block.failed.pop(sample)
        self.committed_samples.extend(sorted(committed))

    def _seal(self, open_block: OpenBlock, failed: dict[int, FailureReason]) -> Future[set[int]]:
        """Take the block's writer, with all that was appended, to the thread that commits."""
        writer = open_block.writer or self._new_writer(open_block.block)
        open_block.writer = None
        try:
            self._finish()
        except BaseException:
            self._discard(writer)
            raise
        open_block.sealed = self._committer.submit(self._commit_in_thread, writer, failed)
        return open_block.sealed

    def _commit_in_thread(self, writer: BlockWriter, failed: dict[int, FailureReason]) -> set[int]:
        span = writer.block.span
        try:
            self._refuse_if_away()
            committed = self._store.commit(writer, failed, lambda: self._claims.check(span))
        except BaseException as error:
            self._note(error)
            self._discard(writer)
            raise
        with self._counting:
            self.bytes_stored += writer.new_bytes
        return committed

    def _note(self, error: BaseException) -> None:
        if isinstance(error, UnreachableError):
            self._away = error

    def _refuse_if_away(self) -> None:
        if self._away is not None:
            raise UnreachableError(str(self._away))

    def _drop_writer(self, open_block: OpenBlock) -> None:
        if open_block.writer is not None:
            self._discard(open_block.writer)
            open_block.writer = None

    def _discard(self, writer: BlockWriter) -> None:
        writer.discard(abort=self._away is None)


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


def _tell_appended(item: _Item) -> None:
    item.open_block.appended.add(item.sample)
    item.open_block.changed_at_seconds = item.done.get_loop().time()
    item.done.set_result(None)


def _tell_lost(item: _Item, error: BaseException) -> None:
    item.open_block.appended.clear()  # its writer is gone: they stay pending
    item.done.set_exception(error)
    item.done.exception()  # the waiter may be cancelled: an unread exception must not be logged
