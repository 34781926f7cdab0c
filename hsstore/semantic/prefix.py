"""Compare the first rows of samples that begin with the same tokens: they must be the same states. Pure.

In a causal model a state depends on the tokens up to it and on nothing else. So the rows of a shared
beginning, such as a system prompt, are equal in all samples but for rounding. Only this check sees
another layer, another checkpoint, quantised weights, or a wrong context.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from hsstore.dtype import DTypeName
    from hsstore.spec import Model

PREFIX_ROWS = 16
"""Rows of a shared beginning that are compared, at most."""
LENGTHS = (16, 8, 4, 2, 1)
"""Beginnings that are looked for: the longest that enough samples share."""
MEMBERS = 8
"""Samples that share one, at least: so many give a median that few bad ones do not move."""
REFERENCES = 8
"""Beginnings kept, those of most samples."""
ROUNDING: dict[DTypeName, float] = {"bfloat16": 2**-8, "float16": 2**-11, "float32": 2**-11}
"""Spacing of the numbers that a model computes with, relative; of float32 that of TF32."""
ROUNDINGS = 2.0
"""Noise of other kernels (another batch, chunked prefill, one token at a time, float32) was measured as
0.8 to 1 spacings times the root of the number of layers behind a state: at most half of what is allowed."""
NORMED = 1.4
"""The final norm makes that noise so much larger."""


@dataclass(frozen=True, slots=True)
class Reference:
    """The states of one shared beginning.

    Attributes
    ----------
    ids : int32 (n,)
    states : float32 (n, slots, hidden)
    """

    ids: npt.NDArray[np.int32]
    states: npt.NDArray[np.float32]

    def fits(self, ids: npt.NDArray[np.int32]) -> bool:
        """Say whether a sample begins with these tokens."""
        return len(ids) >= len(self.ids) and bool((ids[: len(self.ids)] == self.ids).all())


@dataclass(frozen=True, slots=True)
class Likeness:
    """How the first rows of a sample compare with those of a reference; median over the rows.

    Attributes
    ----------
    error : float64 (slots, slots)
        Relative difference (2-norm) of the sample's slot, first axis, from the reference's.
    scale : float64 (slots,)
        The factor of a slot that explains most of its difference.
    rest : float64 (slots,)
        The relative difference that is left then.
    """

    error: npt.NDArray[np.float64]
    scale: npt.NDArray[np.float64]
    rest: npt.NDArray[np.float64]


def noise(model: Model) -> npt.NDArray[np.float64]:
    """Return the relative difference of each slot that other kernels may explain, (slots,)."""
    depth = [layer + 1.0 for layer in model.layers]
    roots = np.sqrt(depth).tolist()
    if model.final != "none":
        factor = NORMED if model.final == "post-norm" else 1.0
        roots.append(factor * model.num_layers**0.5)
    return np.array(roots) * ROUNDING[model.dtype] * ROUNDINGS


def compare(states: npt.NDArray[np.float32], reference: npt.NDArray[np.float32]) -> Likeness:
    """Compare first rows with a reference, both float32 (n, slots, hidden)."""
    ours, theirs = states.astype(np.float64), reference.astype(np.float64)
    product = np.einsum("ijk,imk->ijm", ours, theirs)  # (rows, our slot, their slot)
    our_square = np.einsum("ijk,ijk->ij", ours, ours)
    square = np.maximum(np.einsum("ijk,ijk->ij", theirs, theirs), 1e-30)
    away = our_square[:, :, None] - 2 * product + square[:, None, :]
    error = np.sqrt(np.maximum(away, 0) / square[:, None, :])
    own = np.einsum("ijj->ij", product)
    scale = own / square
    rest = np.sqrt(np.maximum(our_square - own * scale, 0) / square)
    size = np.maximum(np.abs(np.median(scale, axis=0)), 1e-30)
    return Likeness(
        np.median(error, axis=0), np.median(scale, axis=0), np.median(rest, axis=0) / size
    )


def find_references(
    beginnings: Sequence[npt.NDArray[np.int32]], states: Sequence[npt.NDArray[Any]]
) -> list[Reference]:
    """Return the beginnings that samples share, longest first, each with its median states.

    Parameters
    ----------
    beginnings : int32 (n,) each
        First tokens of some samples, `PREFIX_ROWS` at most.
    states : float32 (n, slots, hidden) each
        Their rows.
    """
    taken: set[int] = set()
    found: list[tuple[int, Reference]] = []
    for length in LENGTHS:
        groups = defaultdict(list)
        for at, ids in enumerate(beginnings):
            if at not in taken and len(ids) >= length:
                groups[ids[:length].tobytes()].append(at)
        for members in groups.values():
            if len(members) >= MEMBERS:
                taken.update(members)
                median = np.median([states[at][:length] for at in members], axis=0)
                ids = np.array(beginnings[members[0]][:length])
                found.append((len(members), Reference(ids, median.astype(np.float32))))
    most = sorted(found, key=lambda one: -one[0])[:REFERENCES]
    return sorted((reference for _, reference in most), key=lambda one: -len(one.ids))


def reference_of(references: Sequence[Reference], ids: npt.NDArray[np.int32]) -> Reference | None:
    """Return the longest reference that a sample begins with."""
    return next((one for one in references if one.fits(ids)), None)
