"""Copies of a forward's states on their way to the spool, in a bounded host buffer.

The tensors of a forward are views of buffers that the next one rewrites, so their copy is queued
right behind it. On a CPU that is all. On CUDA the rows are gathered on the device, on the stream
of the forward, and move to pinned memory on a stream of their own, beside the next forward; an
event says when they are there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol

import torch

from hsstore_sglang.ring import ALIGNMENT_BYTES, Ring

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    import numpy.typing as npt

    from hsstore_sglang.slices import Run

_BITS: Final = {torch.bfloat16: torch.int16}
"""numpy has no bfloat16: its bits travel as integers."""
_ID_BYTES: Final = 4
MIN_STAGING_BYTES: Final = 64 << 20
_FORWARDS: Final = {"cuda": 4}
"""Forwards on their way at once. SGLang launches ahead: behind a launch, the forward itself and the
one before it are still to be computed, the third one arrives, and the fourth one is written."""
_FORWARDS_ELSEWHERE: Final = 2
"""Where a forward has ended when its hook runs: one arrives while the one before it is written."""


class Event(Protocol):
    """A `torch.cuda.Event`."""

    def synchronize(self) -> None:
        """Wait until it has happened."""


class TooLargeError(Exception):
    """A forward does not fit the whole buffer; to wait for room is no use."""


class Shape:
    """The layout of staged rows: states `[rows, slots, hidden]`, then ids `[rows]`."""

    def __init__(self, slots: int, hidden: int, dtype: torch.dtype) -> None:
        self.slots = slots
        self.hidden = hidden
        self.dtype = dtype
        self.row_bytes = slots * hidden * dtype.itemsize

    def size_bytes(self, rows: int) -> int:
        """Bytes of so many rows."""
        return rows * (self.row_bytes + _ID_BYTES)

    def views(self, memory: torch.Tensor, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
        """See bytes as states and ids."""
        states = memory[: rows * self.row_bytes].view(self.dtype)
        ids = memory[rows * self.row_bytes : self.size_bytes(rows)].view(torch.int32)
        return states.view(rows, self.slots, self.hidden), ids


class Staged:
    """The rows of one forward in host memory. Complete once `wait` has returned."""

    def __init__(
        self, ring: Ring, offset: int, states: torch.Tensor, ids: torch.Tensor, event: Event | None
    ) -> None:
        self._ring = ring
        self._offset = offset
        self._states = states.view(_BITS.get(states.dtype, states.dtype))
        self._ids = ids
        self._event = event

    def wait(self) -> None:
        """Return when the rows have arrived."""
        if self._event is not None:
            self._event.synchronize()

    def rows(self, low: int, high: int) -> tuple[npt.NDArray[Any], npt.NDArray[np.int32]]:
        """States `[n, slots, hidden]`, bits for bfloat16, and ids `[n]` of the rows [low, high)."""
        return self._states[low:high].numpy(), self._ids[low:high].numpy()

    def release(self) -> None:
        """Give the memory back."""
        self._ring.give_back(self._offset)


class Staging:
    """The host buffer, and how rows get into it."""

    def __init__(self, size_bytes: int, shape: Shape, device: torch.device) -> None:
        """Take the memory now: none of it may be missing later.

        Parameters
        ----------
        size_bytes
            Bound of what is on its way at once.
        device
            Where the states are computed.
        """
        self.shape = shape
        self.ring = Ring(size_bytes)
        self._on_cuda = device.type == "cuda"
        self._device = _with_number(device) if self._on_cuda else device
        self._memory = torch.zeros(size_bytes, dtype=torch.uint8, pin_memory=self._on_cuda)
        self._stream = _new_stream(self._device) if self._on_cuda else None

    def use_in_this_thread(self) -> None:
        """Prepare the thread that waits for copies: a new one looks at the first GPU."""
        if self._on_cuda:
            torch.cuda.set_device(self._device)

    def stage(
        self,
        runs: Sequence[Run],
        aux: torch.Tensor,
        final: torch.Tensor,
        ids: torch.Tensor,
        *,
        wait_seconds: float,
    ) -> Staged | None:
        """Queue the copy of some rows; None where the buffer stays full for `wait_seconds`.

        Parameters
        ----------
        runs
            The rows to take, in this order.
        aux
            Shape (T, K * hidden): the states after K layers, side by side.
        final
            Shape (T, hidden).
        ids
            Shape (T,).

        Raises
        ------
        TooLargeError
            These rows need more than the whole buffer.
        """
        rows = sum(run.rows for run in runs)
        size_bytes = self.shape.size_bytes(rows)
        if size_bytes > self.ring.size_bytes:
            raise TooLargeError(
                f"{rows} rows need {size_bytes} bytes, the staging buffer has {self.ring.size_bytes}"
            )
        offset = self.ring.take(size_bytes, wait_seconds=wait_seconds)
        if offset is None:
            return None
        try:
            host = self._memory[offset : offset + size_bytes]
            event = self._copy(host, runs, aux, final, ids)
            return Staged(self.ring, offset, *self.shape.views(host, rows), event)
        except BaseException:
            self.ring.give_back(offset)
            raise

    def _copy(
        self,
        host: torch.Tensor,
        runs: Sequence[Run],
        aux: torch.Tensor,
        final: torch.Tensor,
        ids: torch.Tensor,
    ) -> Event | None:
        rows = sum(run.rows for run in runs)
        if self._stream is None:
            _gather(self.shape.views(host, rows), runs, aux, final, ids)
            return None
        device = torch.empty(host.shape, dtype=torch.uint8, device=self._device)
        _gather(self.shape.views(device, rows), runs, aux, final, ids)
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            host.copy_(device, non_blocking=True)
            # Blocking: to wait for it must not spin, this is a core of the server's.
            arrived = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
            arrived.record(self._stream)
        # The caching allocator must not hand these bytes out again before the copy has read them.
        device.record_stream(self._stream)
        return arrived


def default_staging_bytes(
    shape: Shape, rows: int, device: torch.device, *, least_bytes: int = MIN_STAGING_BYTES
) -> int:
    """Size a buffer for all forwards of up to so many rows that are on their way at once."""
    one = -(-shape.size_bytes(rows) // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
    forwards = _FORWARDS.get(device.type, _FORWARDS_ELSEWHERE)
    # One more: unequal forwards leave a gap at the end of the ring.
    return max((forwards + 1) * one, least_bytes)


def _gather(
    target: tuple[torch.Tensor, torch.Tensor],
    runs: Sequence[Run],
    aux: torch.Tensor,
    final: torch.Tensor,
    ids: torch.Tensor,
) -> None:
    """Copy rows to `[rows, slots, hidden]` and `[rows]`, on the stream of the forward."""
    states, out_ids = target
    layers = states.shape[1] - 1
    low = 0
    for run in runs:
        here, there = slice(low, low + run.rows), slice(run.offset, run.offset + run.rows)
        states[here, :layers].copy_(aux[there].view(run.rows, layers, states.shape[2]))
        states[here, layers].copy_(final[there])
        out_ids[here].copy_(ids[there])
        low += run.rows


def _with_number(device: torch.device) -> torch.device:
    """Name the GPU that `cuda` means here: in another thread it may mean another one."""
    if str(device) != "cuda":
        return device
    return torch.device("cuda", torch.cuda.current_device())


def _new_stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
