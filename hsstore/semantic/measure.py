"""Everything that is measured of one sample, piece by piece: memory is that of a piece. No judgement."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np

from hsstore.dtype import infinity_bits, largest_magnitude
from hsstore.semantic.contrast import SKIPPED_ROWS, Fit, join, only, sum_up
from hsstore.semantic.floats import to_float32
from hsstore.semantic.identity import code_range, features
from hsstore.semantic.prefix import PREFIX_ROWS, compare, reference_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from hsstore.semantic.context import Context
    from hsstore.semantic.contrast import Contrast
    from hsstore.semantic.prefix import Likeness

EQUAL_CHANNELS = 8
"""Compared first: rows of two slots that differ do so here."""
PATTERN_ROWS = 2
"""Of a piece, whose mantissas are looked at."""
PATTERN_VALUES = 512
"""Fewer values of a slot say nothing of their mantissas."""
MANTISSA_BITS = {"bfloat16": 7, "float16": 10, "float32": 23}


@dataclass(slots=True)
class Measures:
    """What was measured of one sample, by slot; NaN where nothing could be measured."""

    sample: int
    tokens: int
    not_finite: list[int] = field(default_factory=list)
    """Rows with an infinity or a NaN, by slot."""
    zero: list[int] = field(default_factory=list)
    """Rows that are all zero, by slot."""
    bad_row: int = 0
    """The first of both."""
    equal: dict[tuple[int, int], int] = field(default_factory=dict)
    """Rows that are equal in two slots."""
    patterns: list[float] = field(default_factory=list)
    """Different mantissas of 7 bits in a row, by slot: of 128."""
    factor: tuple[float, float, float] = (np.nan, np.nan, np.nan)
    """rms(final / w) of a row: the least, the median and the largest."""
    log_rms: list[float] = field(default_factory=list)
    """Median log rms of a row, by slot."""
    beginning: Likeness | None = None
    """How the first rows compare; None where no other sample begins so."""
    beginning_undone: float = np.nan
    """How the first rows of the final slot compare with those of a reference, had it been normed once more:
    relative difference."""
    loss: Fit | None = None
    """Minus the loss of the next tokens."""
    undone: float = np.nan
    """Loss with the final norm taken back once, less the loss."""
    identity: list[Fit | None] = field(default_factory=list)
    """Of the tokens themselves, by auxiliary slot; None where the slot has no map."""


def measure(context: Context, sample: int, *, normed: bool | None = None) -> Measures:
    """Measure a complete sample.

    Parameters
    ----------
    normed : bool, optional
        Whether its final state is taken as one behind the final norm; by default as the store says.

    Raises
    ------
    CorruptStoreError, NotExtractedError, OSError
        Its states cannot be read.
    """
    ids = context.ids(sample)
    if normed is None:
        normed = context.model.final == "post-norm"
    passing = _Pass(context, Measures(sample, len(ids)), ids, normed=normed)
    for first, bits in pieces(context, sample, len(ids)):
        passing.take(first, bits)
    return passing.finish()


def pieces(context: Context, sample: int, tokens: int) -> Iterator[tuple[int, npt.NDArray[Any]]]:
    """Yield the first row of each piece of a sample, and its raw bits (n, slots, hidden)."""
    for start in range(0, tokens, context.read_rows):
        read = context.read(sample, slice(start, min(start + context.read_rows, tokens)))
        for first in range(0, len(read), context.piece_rows):
            yield start + first, read[first : first + context.piece_rows]


class _Pass:
    """One pass over a sample."""

    def __init__(
        self, context: Context, found: Measures, ids: npt.NDArray[np.int32], *, normed: bool
    ) -> None:
        self._context = context
        self._found = found
        self._ids = ids
        slots = context.model.slots
        self._not_finite = np.zeros(slots, np.int64)
        self._zero = np.zeros(slots, np.int64)
        self._bad_row = len(ids)
        self._patterns: list[list[int]] = []
        self._factors: list[npt.NDArray[np.float32]] = []
        self._log_rms: list[list[npt.NDArray[np.float32]]] = [[] for _ in range(slots)]
        self._losses: list[Contrast] = []
        self._normed = normed
        self._undone: list[npt.NDArray[np.float32]] = []
        self._identities: list[list[Contrast]] = [[] for _ in range(context.auxiliary)]

    def take(self, first: int, bits: npt.NDArray[Any]) -> None:
        """Look at one piece, from row `first` of the sample on."""
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            self._look_at_bits(first, bits)
            if first == 0:
                self._compare_beginning(bits[:PREFIX_ROWS])
            for slot in range(self._context.auxiliary):
                self._look_at_auxiliary(first, bits, slot)
            if self._context.has_final:
                self._look_at_final(first, bits[:, -1])

    # --- bits ---------------------------------------------------------------------------------

    def _look_at_bits(self, first: int, bits: npt.NDArray[Any]) -> None:
        dtype = self._context.model.dtype
        largest = largest_magnitude(bits, dtype)
        not_finite, zero = largest >= infinity_bits(dtype), largest == 0
        self._not_finite += not_finite.sum(axis=0)
        self._zero += zero.sum(axis=0)
        bad = np.flatnonzero((not_finite | zero).any(axis=1))
        if len(bad):
            self._bad_row = min(self._bad_row, first + int(bad[0]))
        for a, b in combinations(range(bits.shape[1]), 2):
            if count := _equal_rows(bits[:, a], bits[:, b], largest[:, a] > 0):
                self._found.equal[a, b] = self._found.equal.get((a, b), 0) + count
        self._patterns += _patterns(bits, MANTISSA_BITS[dtype])

    def _compare_beginning(self, bits: npt.NDArray[Any]) -> None:
        reference = reference_of(self._context.references, self._ids)
        if reference is not None:
            states = np.nan_to_num(
                to_float32(bits[: len(reference.ids)], self._context.model.dtype),
                nan=0,
                posinf=0,
                neginf=0,
            )
            self._found.beginning = compare(states, reference.states)
            if self._context.has_final:
                final, expected = states[:, -1], reference.states[:, -1]
                if self._context.model.final == "post-norm":
                    final = self._context.norm.undo(final)
                else:
                    expected = self._context.norm.apply(expected)
                error = compare(final[:, None], expected[:, None]).error
                self._found.beginning_undone = float(error[0, 0])

    # --- auxiliary slots ----------------------------------------------------------------------

    def _look_at_auxiliary(self, first: int, bits: npt.NDArray[Any], slot: int) -> None:
        context = self._context
        rows, values = self._sampled(first, bits[:, slot], len(self._ids))
        if not len(rows):
            return
        rms = row_rms(values)
        self._log_rms[slot].append(np.log(np.maximum(rms, 1e-20)))
        own_map = context.map_of(slot, self._found.sample)
        if own_map is not None:
            near = code_range(rows, len(self._ids))
            codes = context.codes(self._ids[near])
            contrast = own_map.contrast(features(values, rms), rows, self._ids, codes, near.start)
            known = context.is_known(self._ids[rows], self._found.sample)
            self._identities[slot].append(only(contrast, known))

    # --- the final state ----------------------------------------------------------------------

    def _look_at_final(self, first: int, bits: npt.NDArray[Any]) -> None:
        context = self._context
        if self._normed:
            values = to_float32(bits, context.model.dtype)
            self._factors.append(context.norm.factors(values))
        rows, values = self._sampled(first, bits, len(self._ids) - 1)
        if context.loss is None or not len(rows):
            return
        self._log_rms[-1].append(np.log(np.maximum(row_rms(values), 1e-20)))
        final = values if self._normed else context.norm.apply(values)
        contrast = context.loss.contrast(final, rows, self._ids)
        self._losses.append(contrast)
        undone = context.norm.undo(final)
        self._undone.append(context.loss.loss(undone, rows, self._ids) + contrast.own)

    def _sampled(
        self, first: int, bits: npt.NDArray[Any], stop: int
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
        """Return the rows of a slot that are looked at closely, and their finite values."""
        stride = self._context.stride
        start = max(-(-first // stride) * stride, SKIPPED_ROWS)
        rows = np.arange(start, min(first + len(bits), stop), stride)
        values = to_float32(bits[rows - first], self._context.model.dtype)
        if self._not_finite.any():
            values = np.nan_to_num(values, nan=0, posinf=0, neginf=0)
        return rows, values

    # --- the end ------------------------------------------------------------------------------

    def finish(self) -> Measures:
        """Sum up."""
        found, stride = self._found, self._context.stride
        found.not_finite, found.zero = self._not_finite.tolist(), self._zero.tolist()
        found.bad_row = self._bad_row
        if self._patterns:
            found.patterns = np.median(self._patterns, axis=0).tolist()
        if self._factors:
            factors = np.concatenate(self._factors)
            found.factor = (float(factors.min()), float(np.median(factors)), float(factors.max()))
        found.log_rms = [
            float(np.median(np.concatenate(logs))) if logs else np.nan for logs in self._log_rms
        ]
        if self._losses:
            found.loss = sum_up(join(self._losses), stride)
            found.undone = float(np.concatenate(self._undone).mean())
        found.identity = [
            sum_up(join(parts), stride) if parts else None for parts in self._identities
        ]
        return found


def row_rms(values: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Return the root of the mean square of each row, (n,)."""
    return np.asarray(np.sqrt(np.einsum("ij,ij->i", values, values) / values.shape[1]))


def _equal_rows(a: npt.NDArray[Any], b: npt.NDArray[Any], not_zero: npt.NDArray[np.bool_]) -> int:
    few = (a[:, :EQUAL_CHANNELS] == b[:, :EQUAL_CHANNELS]).all(axis=1) & not_zero
    where = np.flatnonzero(few)
    return int((a[where] == b[where]).all(axis=1).sum()) if len(where) else 0


def _patterns(bits: npt.NDArray[Any], mantissa_bits: int) -> list[list[int]]:
    """Count the different upper 7 bits of the mantissas, by slot, in a few rows."""
    together = -(-PATTERN_VALUES // bits.shape[2])
    count = len(bits) // together
    found = []
    for at in range(0, count, max(1, count // PATTERN_ROWS)):
        few = (bits[at * together : (at + 1) * together] >> (mantissa_bits - 7)) & 127
        found.append([len(np.unique(few[:, slot])) for slot in range(bits.shape[1])])
    return found[:PATTERN_ROWS]
