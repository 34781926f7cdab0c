"""The states of one file, brought into the form of the store, or why they cannot be."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from hsstore.digest import PayloadHasher
from hsstore.formats.norm import apply_norm
from hsstore.importing.files import NotTakenError
from hsstore.plausible import find_state_fault
from hsstore.report import LeftKind

if TYPE_CHECKING:
    import numpy.typing as npt

    from hsstore.formats.sample import ForeignSample
    from hsstore.importing.files import Source
    from hsstore.store import Store


class StateReader:
    """Reads files for one store.

    Parameters
    ----------
    apply_norm : bool
        Normalise final states that files hold before the norm, where the store has them after it.
    """

    def __init__(self, source: Source, store: Store, *, apply_norm: bool) -> None:
        self._source = source
        self._store = store
        self._apply_norm = apply_norm
        self._weight: npt.NDArray[np.float32] = store.plan_array("norm_weight")

    def read(self, file: str, rows: int) -> tuple[npt.NDArray[Any], int]:
        """Return the states of the first rows, which may be mapped from the file, and their digest.

        Returns
        -------
        bits : uint16 or uint32 (rows, slots, hidden)
        digest : int
            Their `payload_digest`.

        Raises
        ------
        NotTakenError
        """
        sample, model = self._source.sample(file), self._store.spec.model
        if sample.states.shape[2] != model.hidden:
            detail = f"states are {sample.states.shape[2]} wide, the store's {model.hidden}"
            raise NotTakenError(LeftKind.SHAPE, detail)
        if sample.states.dtype.name != model.dtype:
            detail = f"states are {sample.states.dtype.name}, the store's {model.dtype}"
            raise NotTakenError(LeftKind.DTYPE, detail)
        states = self._with_final(sample, np.ascontiguousarray(sample.states[:rows]))
        bits, hasher = states.view(self._store.bits), PayloadHasher()
        if fault := find_state_fault(bits, rows, model, hasher):
            raise NotTakenError(LeftKind.VALUES, fault.message)
        return bits, hasher.digest()

    def _with_final(self, sample: ForeignSample, states: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return states with the store's kind of final state; a copy, if it is another."""
        model = self._store.spec.model
        if sample.final == model.final:
            return states
        if sample.final != "pre-norm" or model.final != "post-norm":
            detail = f"holds the {sample.final} state, the store the {model.final} one"
            raise NotTakenError(LeftKind.FINAL, detail)
        if not self._apply_norm:
            detail = (
                "holds the state before the norm, the store the one after it: --apply-norm converts"
            )
            raise NotTakenError(LeftKind.FINAL, detail)
        out = states.copy()
        out[:, -1] = apply_norm(states[:, -1], model.norm, self._weight)
        return out
