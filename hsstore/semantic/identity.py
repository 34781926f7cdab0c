"""Which token a row stands at, read from an auxiliary state by a map that is fitted on the store. Pure.

A state that is divided by its own norm, centred and clipped, times a matrix, gives about the embedding of
its token. The matrix is a ridge regression on a few ten thousand rows. To keep the cost from growing with
the square of the width, it goes from the first channels of the state to the first of the embedding.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from hsstore.semantic.contrast import contrast_rows
from hsstore.semantic.loss import MARGIN

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from hsstore.semantic.checkpoint import Tensor
    from hsstore.semantic.contrast import Contrast

CHANNELS = 1024
"""Of a state that the map looks at."""
CODE_CHANNELS = 256
"""Of an embedding that it aims at: directions of so many numbers differ as those of all do."""
CLIP = 6.0
"""Spreads from the median: a few channels of a state are hundreds of times as large as the rest."""
RIDGES = (30.0, 300.0, 3000.0)
"""Penalties that are tried; that with the best fit on rows that it has not seen is taken."""


@dataclass(frozen=True, slots=True)
class Codes:
    """What stands for each token: the direction of a part of its embedding, less the usual one.

    Attributes
    ----------
    mean : float32 (codes,)
        Of the tokens of the store, as often as they occur: what they have in common tells nothing.
    """

    embedding: Tensor
    mean: npt.NDArray[np.float32]

    def __call__(self, ids: npt.NDArray[np.int32]) -> npt.NDArray[np.float32]:
        """Return codes of length 1, shape (n, at most CODE_CHANNELS)."""
        return unit(self.embedding.rows(ids)[:, :CODE_CHANNELS] - self.mean)


def unit(rows: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Divide rows by their length."""
    length = np.sqrt(np.einsum("ij,ij->i", rows, rows))
    return np.asarray(rows / np.maximum(length, 1e-12)[:, None])


def features(
    states: npt.NDArray[np.float32], rms: npt.NDArray[np.float32]
) -> npt.NDArray[np.float32]:
    """Return what a map looks at: the first channels over the rms of the row.

    Parameters
    ----------
    states : float32 (n, hidden)
    rms : float32 (n,)
    """
    return np.asarray(states[:, :CHANNELS] / np.maximum(rms, 1e-30)[:, None])


@dataclass(frozen=True, slots=True)
class IdentityMap:
    """From features of one slot to codes.

    Attributes
    ----------
    centre, spread : float32 (channels,)
    weight : float32 (channels, codes)
    offset : float32 (codes,)
    """

    centre: npt.NDArray[np.float32]
    spread: npt.NDArray[np.float32]
    weight: npt.NDArray[np.float32]
    offset: npt.NDArray[np.float32]

    def guess(self, found: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Return the code that each row's token should have, length 1, shape (n, codes)."""
        return unit(scaled(found, self.centre, self.spread) @ self.weight + self.offset)

    def contrast(
        self,
        found: npt.NDArray[np.float32],
        rows: npt.NDArray[np.int64],
        ids: npt.NDArray[np.int32],
        codes: npt.NDArray[np.float32],
        first: int,
    ) -> Contrast:
        """Compare the token of each row with other tokens of the sample; fit is the cosine.

        Parameters
        ----------
        found : float32 (n, channels)
            See `features`.
        codes : float32 (m, codes)
            Those of the tokens from `first` on.
        """
        guess = self.guess(found)

        def score(
            which: npt.NDArray[np.int64], at: npt.NDArray[np.int64]
        ) -> npt.NDArray[np.float32]:
            return np.asarray(np.einsum("ij,ij->i", guess[which], codes[at - first]))

        return contrast_rows(rows, ids, 0, score)


def scaled(
    found: npt.NDArray[np.float32],
    centre: npt.NDArray[np.float32],
    spread: npt.NDArray[np.float32],
) -> npt.NDArray[np.float32]:
    """Centre, divide by the spread, and clip."""
    values = found - centre
    values /= spread
    return np.clip(values, -CLIP, CLIP, out=values)


def code_range(rows: npt.NDArray[np.int64], tokens: int) -> slice:
    """Return the tokens that these rows may be compared with."""
    return slice(max(0, int(rows[0]) - MARGIN), min(tokens, int(rows[-1]) + MARGIN))


# --- fitting ----------------------------------------------------------------------------------


def robust_scale(
    found: npt.NDArray[np.float32],
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """Return median and spread (1.48 times the median distance from it) of each channel."""
    centre = np.median(found, axis=0)
    spread = np.median(np.abs(found - centre), axis=0) * 1.4826 + 1e-4
    return centre.astype(np.float32), spread.astype(np.float32)


class Regression:
    """A ridge regression from the features of one slot to several sets of codes.

    Parameters
    ----------
    found : float32 (n, channels)
    codes : float32 (n, codes) each
    """

    def __init__(
        self,
        found: npt.NDArray[np.float32],
        codes: Sequence[npt.NDArray[np.float32]],
        centre: npt.NDArray[np.float32],
        spread: npt.NDArray[np.float32],
    ) -> None:
        values = scaled(found, centre, spread)
        wanted = np.concatenate(codes, axis=1)
        self._sets = len(codes)
        self._centre, self._spread = centre, spread
        self._mean, self._level = values.mean(axis=0), wanted.mean(axis=0)
        values -= self._mean
        self._gram = values.T @ values
        self._product = values.T @ (wanted - self._level)

    def solve(self, ridge: float) -> list[IdentityMap]:
        """Return the map to each set of codes, under a penalty."""
        gram = self._gram.copy()
        gram[np.diag_indices_from(gram)] += ridge
        weight = np.linalg.solve(gram, self._product).astype(np.float32)
        offset = (self._level - self._mean @ weight).astype(np.float32)
        return [
            IdentityMap(self._centre, self._spread, *one)
            for one in zip(
                np.split(weight, self._sets, axis=1), np.split(offset, self._sets), strict=True
            )
        ]
