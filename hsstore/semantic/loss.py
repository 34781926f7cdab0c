"""The loss of a next token against a few others, from final states alone. Pure.

Against 128 other tokens it tells rows that belong to their tokens from others as well as against the
whole vocabulary does, at a hundredth of the cost.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from hsstore.semantic.contrast import contrast_rows

if TYPE_CHECKING:
    import numpy.typing as npt

    from hsstore.semantic.checkpoint import Tensor
    from hsstore.semantic.contrast import Contrast

NEGATIVES = 128
"""Tokens that a loss is taken against."""
MARGIN = 64
"""Tokens around a piece that its rows may be compared with."""


@dataclass(frozen=True, slots=True)
class SampledLoss:
    """Losses against the same few tokens.

    Attributes
    ----------
    output : Tensor
        (vocabulary, hidden), memory-mapped.
    negatives : float32 (n, hidden)
        Rows of it.
    """

    output: Tensor
    negatives: npt.NDArray[np.float32]

    def contrast(
        self,
        final: npt.NDArray[np.float32],
        rows: npt.NDArray[np.int64],
        ids: npt.NDArray[np.int32],
    ) -> Contrast:
        """Compare the next token of each row with other tokens of the sample; fit is minus the loss.

        Parameters
        ----------
        final : float32 (n, hidden)
            What the output matrix sees: after the final norm.
        rows : int64 (n,)
            Where they stand; none may be the last of the sample.
        """
        first, stop = max(0, rows[0] - MARGIN), min(len(ids), rows[-1] + MARGIN)
        targets = self.output.rows(ids[first:stop])
        others = np.logaddexp.reduce(final @ self.negatives.T, axis=1)

        def score(
            which: npt.NDArray[np.int64], at: npt.NDArray[np.int64]
        ) -> npt.NDArray[np.float32]:
            logit = np.einsum("ij,ij->i", final[which], targets[at - first])
            return np.asarray(logit - np.logaddexp(logit, others[which]), np.float32)

        return contrast_rows(rows, ids, 1, score)

    def loss(
        self,
        final: npt.NDArray[np.float32],
        rows: npt.NDArray[np.int64],
        ids: npt.NDArray[np.int32],
    ) -> npt.NDArray[np.float32]:
        """Return the loss of the next token of each row alone, (n,)."""
        logit = np.einsum("ij,ij->i", final, self.output.rows(ids[rows + 1]))
        others = np.logaddexp.reduce(final @ self.negatives.T, axis=1)
        return np.asarray(np.logaddexp(logit, others) - logit, np.float32)
