"""Write one block: encode samples in parallel, append them to its shard in one pass.

Samples may come in any order; the chunks of one sample stay together. Memory is a few chunks,
whatever the size of the samples. Nothing is visible before `publish`, and a block that was
committed in part is continued by copying its encoded chunks, decoding nothing.
"""

from __future__ import annotations

import errno
from collections import deque
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from hsstore.digest import payload_digest
from hsstore.errors import RefusedError
from hsstore.shard import new_shard, shard_path

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from concurrent.futures import Executor, Future
    from pathlib import Path

    import numpy as np
    import numpy.typing as npt

    from hsstore.codec import ChunkCodec
    from hsstore.layout import Block, ChunkPlace, Layout
    from hsstore.location import Location
    from hsstore.reader import PayloadReader
    from hsstore.shard.upload import ShardUpload
    from hsstore.shard.writer import ShardWriter
    from hsstore.spans import Span

    Encoded = tuple[npt.NDArray[np.uint8], int]
    """A buffer of the codec, and how much of it is one encoded chunk."""

LOOKAHEAD_CHUNKS = 8
"""Chunks being encoded, or encoded and not yet written: the memory of the writer."""


class SealableBlock(Protocol):
    """What `Store.commit` takes: a block whose states are written, or nearly so."""

    block: Block

    def seal(self) -> dict[int, int]:
        """Make the states durable, and return the digest of each sample whose bit is to be set."""

    def publish(self) -> None:
        """Give the files their names, durably."""

    def loses(self, complete: set[int]) -> set[int]:
        """Return which of these samples of the block have no states any more once it is published."""


def refuse_to_lose(writer: SealableBlock, span: Span) -> None:
    """Refuse a block that lacks states whose bits are set: they were committed since it was opened.

    Raises
    ------
    RefusedError
    """
    if lost := _lost(writer, span):
        raise RefusedError(
            f"sample {min(lost)} was committed by somebody else while this run wrote its block, and would be lost "
            "with it, so nothing of the block was published; run the same command again"
        )


@contextmanager
def refuse_replaced() -> Iterator[None]:
    """Refuse where a shard of the store's own is replaced while it is copied: nobody else may write it.

    Raises
    ------
    ConflictError
    """
    try:
        yield
    except OSError as error:
        if error.errno != errno.ESTALE:
            raise
        from hsstore.objects.puts import ConflictError  # noqa: PLC0415  # brings fsspec

        raise ConflictError(str(error.filename)) from error


def _lost(writer: SealableBlock, span: Span) -> set[int]:
    """Return the samples of a block whose bits are set, and whose states it does not have."""
    samples = range(writer.block.samples.start - span.first, writer.block.samples.stop - span.first)
    return writer.loses({span.first + index for index in samples if span.complete[index]})


class BlockWriter:
    """The open block of a run. Not thread-safe: one thread appends, `encoders` encode.

    Parameters
    ----------
    codec : ChunkCodec
        The store's: `Store.codec`.
    root : Path or RemotePath
        The store.
    run : str
        Names the partial files, so that leftovers tell whose they were.
    encoders : Executor
        Threads that encode; shared between blocks.
    stage : Path, optional
        For a store in an object store: see `hsstore.shard.upload`.
    """

    def __init__(
        self,
        root: Location,
        layout: Layout,
        codec: ChunkCodec,
        block: Block,
        *,
        run: str,
        encoders: Executor,
        stage: Path | None = None,
    ) -> None:
        self.block = block
        self._root = root
        self._stage = stage
        self._layout = layout
        self._codec = codec
        self._run = run
        self._encoders = encoders
        self._shards: dict[int, ShardWriter | ShardUpload] = {}
        self._taken: set[int] = set()
        self._pending: deque[tuple[int, ChunkPlace, Future[Encoded]]] = deque()
        self._hashing: dict[int, Future[int]] = {}
        self._digests: dict[int, int] = {}
        self._copied_bytes = 0

    @property
    def new_bytes(self) -> int:
        """Encoded bytes of what was appended so far; what was copied does not count."""
        return sum(shard.bytes_written for shard in self._shards.values()) - self._copied_bytes

    def append(self, sample: int, bits: npt.NDArray[Any], digest: int | None = None) -> None:
        """Take one sample; may block until some of its chunks are written.

        `bits` is read until the sample is flushed, and must not change before.

        Parameters
        ----------
        bits : uint16 or uint32 (length, slots, hidden)
            Raw bits; encoded where they lie.
        digest : int, optional
            Their `payload_digest`, if somebody has read them already.
        """
        self._taken.add(sample)
        if digest is None:
            self._hashing[sample] = self._encoders.submit(payload_digest, bits)
        else:
            self._digests[sample] = digest
        for place in self._layout.chunks_of(sample, len(bits)):
            part = bits[place.rows, place.slots]
            self._pending.append((sample, place, self._encoders.submit(self._encode, part)))
            while len(self._pending) > LOOKAHEAD_CHUNKS:
                self._write_next()

    def copy(self, samples: Iterable[int], reader: PayloadReader, length: Iterable[int]) -> None:
        """Take samples that an earlier commit of this block holds, as they are encoded there."""
        self.flush()  # or their chunks would be written between those of another sample
        for sample, tokens in zip(samples, length, strict=True):
            places = list(self._layout.chunks_of(sample, tokens))
            self._taken.add(sample)
            for shard in {place.shard for place in places} - self._shards.keys():
                # What is read here is what is replaced: else whoever came between would be written over.
                self._shards[shard] = self._new_shard(shard, reader.version_anew(shard))
            with refuse_replaced():
                chunks = reader.read_encoded(sample, places)
                for place, encoded in zip(places, chunks, strict=True):
                    self._shard(place.shard).append(place.chunk, encoded)
                    self._copied_bytes += len(encoded)

    def flush(self, sample: int | None = None) -> None:
        """Wait until a sample is written, or everything that was taken; its buffers are free then."""
        while any(sample in {None, pending} for pending, _, _ in self._pending):
            self._write_next()
        for hashed in [one for one in self._hashing if sample in {None, one}]:
            self._digests[hashed] = self._hashing.pop(hashed).result()

    def seal(self) -> dict[int, int]:
        """Finish the files and make them durable, still without a name.

        Returns
        -------
        dict
            The digest of each appended sample (not of those that were copied).
        """
        self.flush()
        for shard in self._shards.values():
            shard.seal()
        return self._digests

    def publish(self) -> None:
        """Give the sealed files their names."""
        for shard in self._shards.values():
            shard.publish()

    def loses(self, complete: set[int]) -> set[int]:
        """Return which of these samples of the block have no states any more once it is published."""
        return complete - self._taken if self._shards else set()

    def discard(self, *, abort: bool = True) -> None:
        """Give up the block: everything taken is dropped, its partial files are removed.

        Parameters
        ----------
        abort : bool
            End its uploads too: see `ShardUpload.discard`.
        """
        for _, _, encoding in self._pending:
            encoding.cancel()
        for hashing in self._hashing.values():
            hashing.cancel()
        self._pending.clear()
        self._hashing.clear()
        for shard in self._shards.values():
            shard.discard(abort=abort)

    def _encode(self, part: npt.NDArray[Any]) -> Encoded:
        buffer = self._codec.take_buffer()
        return buffer, self._codec.encode_into(part, buffer)

    def _write_next(self) -> None:
        _, place, encoding = self._pending.popleft()
        buffer, size = encoding.result()
        self._shard(place.shard).append(place.chunk, buffer[:size].data)
        self._codec.give_buffer(buffer)

    def _shard(self, shard: int) -> ShardWriter | ShardUpload:
        if shard not in self._shards:
            self._shards[shard] = self._new_shard(shard)
        return self._shards[shard]

    def _new_shard(self, shard: int, replaces: str | None = None) -> ShardWriter | ShardUpload:
        path, chunks = shard_path(self._root, shard), self._layout.geometry.shard_chunks
        return new_shard(path, self._run, chunks, stage=self._stage, replaces=replaces)
