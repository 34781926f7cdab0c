"""Copy or encode the samples of one block into new shards, in the memory of a few chunks."""

from __future__ import annotations

import errno
import struct
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

import google_crc32c
import numpy as np

from hsstore.codec import CRC_BYTES, ChunkCodec
from hsstore.consolidate.task import BlockResult, Unusable
from hsstore.digest import PayloadHasher
from hsstore.dtype import bits_dtype
from hsstore.errors import CorruptStoreError, InputError
from hsstore.files import PARTIAL_SUFFIX
from hsstore.shard import new_shard, shard_path
from hsstore.shard.writer import ShardWriter
from hsstore.store import Store
from hsstore.writer import refuse_replaced

if TYPE_CHECKING:
    import numpy.typing as npt

    from hsstore.consolidate.task import BlockTask, How, StoreRef
    from hsstore.shard.upload import ShardUpload


class ShardsWriter:
    """Writes the shards of one block.

    Samples are taken source by source, so that few shards are open at once; in a shard they may lie in any
    order.
    """

    def __init__(self, task: BlockTask, run: str) -> None:
        self._task = task
        self._run = run
        self._sizes = task.layout.geometry
        self._codec = ChunkCodec(self._sizes.chunk_shape, task.dtype, task.codec)
        self._shards: dict[int, ShardWriter | ShardUpload] = {}
        self._result = BlockResult(task.block)

    def write(self) -> BlockResult:
        """Take every sample, and seal the shards. What cannot be taken is named in the result."""
        try:
            self._take_kept()
            for number, source in enumerate(self._task.sources):
                mine = (self._task.source == number) & ~self._task.complete
                self._take_all(source, np.flatnonzero(mine))
            for number, shard in self._shards.items():
                self._seal(number, shard)
        except BaseException:
            for shard in self._shards.values():
                shard.discard()
            raise
        return self._result

    def _seal(self, number: int, shard: ShardWriter | ShardUpload) -> None:
        shard.seal()
        final = shard_path(self._task.destination.path, number)
        if isinstance(shard, ShardWriter) and isinstance(final, Path):
            self._result.partials[final] = partial_name(final, self._run)
        elif not isinstance(shard, ShardWriter) and shard.sent:
            self._result.uploads.append(shard.sent)

    def _take_kept(self) -> None:
        """Copy what an earlier commit of this block holds."""
        kept = np.flatnonzero(self._task.complete)
        if not kept.size:
            return
        destination = open_store(self._task.destination)
        for number in self._task.block.shards:
            version = destination.payload.version_anew(number)
            if version is not None:  # what is read here is what is replaced
                self._shards[number] = self._new_shard(number, version)
        for index in kept.tolist():
            sample = self._task.block.samples[index]
            with refuse_replaced():
                self._copy(destination, sample, index)
            self._result.how[sample] = "kept"

    def _take_all(self, source: StoreRef, indices: npt.NDArray[np.int64]) -> None:
        if not indices.size:
            return
        store = open_store(source)
        for index in indices[np.argsort(self._task.sample[indices])].tolist():
            sample = self._task.block.samples[index]
            try:
                self._result.how[sample] = self._take(store, index)
                self._result.digests[sample] = int(self._task.digest[index])
            except (CorruptStoreError, OSError) as error:
                self._drop(index)
                self._result.unusable.append(Unusable(sample, str(error)))

    def _take(self, store: Store, index: int) -> How:
        """Copy a sample, or encode it anew; once more if its shard is replaced meanwhile."""
        there = int(self._task.sample[index])
        as_it_is = store.spec.codec == self._task.codec and (
            store.spec.geometry.chunk_shape == self._sizes.chunk_shape
        )
        take = self._copy if as_it_is else self._encode
        try:
            take(store, there, index)
        except (CorruptStoreError, OSError) as error:
            if isinstance(error, OSError) and error.errno != errno.ESTALE:
                raise
            take(Store.open(store.location), there, index)
        return "copied" if as_it_is else "encoded"

    def _copy(self, store: Store, there: int, index: int) -> None:
        """Copy the encoded chunks of a sample that another store, or the same, holds."""
        length = int(self._task.length[index])
        places = list(store.index.chunks_of(there, length))
        targets = self._task.layout.chunks_of(index, length)
        chunks = store.payload.read_encoded(there, places)
        for place, target, encoded in zip(places, targets, chunks, strict=True):
            _check_crc(encoded, f"sample {there}: shard c.{place.shard}.0.0 chunk {place.chunk}")
            self._shard(target.shard).append(target.chunk, encoded)

    def _encode(self, store: Store, there: int, index: int) -> None:
        """Decode a sample, a few chunks at a time, encode it anew, and compare its digest."""
        length = int(self._task.length[index])
        size, theirs = self._sizes.chunk_rows, store.spec.layout.chunk_rows
        step = min(-(-theirs // size) * size, -(-length // size) * size)
        rows = np.empty((step, self._sizes.slots, self._sizes.hidden), bits_dtype(self._task.dtype))
        buffer, hasher = self._codec.take_buffer(), PayloadHasher()
        targets = self._task.layout.chunks_of(index, length)
        for number, here in groupby(targets, key=lambda target: target.rows.start // step):
            start = number * step
            part = rows[: min(step, length - start)]
            store.payload.read(there, rows=slice(start, start + len(part)), out=part)
            hasher.update(part)
            for target in here:
                values = part[target.rows.start - start : target.rows.stop - start, target.slots]
                count = self._codec.encode_into(values, buffer)
                self._shard(target.shard).append(target.chunk, buffer[:count].data)
        self._codec.give_buffer(buffer)
        if hasher.digest() != self._task.digest[index]:
            raise CorruptStoreError(
                f"sample {there}: its states have digest {hasher.digest():016x}, recorded is "
                f"{int(self._task.digest[index]):016x}"
            )

    def _drop(self, index: int) -> None:
        """Take back what was written of a sample: its bytes stay, without an entry."""
        for target in self._task.layout.chunks_of(index, int(self._task.length[index])):
            self._shard(target.shard).drop(target.chunk)

    def _shard(self, shard: int) -> ShardWriter | ShardUpload:
        if shard not in self._shards:
            self._shards[shard] = self._new_shard(shard)
        return self._shards[shard]

    def _new_shard(self, shard: int, replaces: str | None = None) -> ShardWriter | ShardUpload:
        path = shard_path(self._task.destination.path, shard)
        return new_shard(path, self._run, self._sizes.shard_chunks, replaces=replaces)


def partial_name(final: Path, run: str) -> Path:
    """Return the name of a shard of a run before it is published."""
    return final.with_name(f"{final.name}.{run}{PARTIAL_SUFFIX}")


def open_store(ref: StoreRef) -> Store:
    """Open a store, and make sure that it is the one that was meant.

    Raises
    ------
    InputError
    """
    store = Store.open(ref.path)
    if store.spec.store != ref.store:
        raise InputError(
            f"{ref.path} is store {store.spec.store}, and was {ref.store} when this run began; put the "
            "old one back, then run the same command again"
        )
    return store


def _check_crc(encoded: bytes, what: str) -> None:
    frame = np.frombuffer(encoded, np.uint8)[:-CRC_BYTES]
    if encoded[-CRC_BYTES:] != struct.pack("<I", google_crc32c.value(frame)):
        raise CorruptStoreError(f"{what}: chunk crc32c does not match")
