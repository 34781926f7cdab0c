"""Samples of a store as the files of another project hold them, without the files.

What export writes and what a direct feed hands over is made here, by the same code.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from hsstore.errors import InputError, RefusedError
from hsstore.formats.names import SampleNames
from hsstore.formats.norm import apply_norm, stand_in_for_pre_norm
from hsstore.formats.sample import ForeignSample

if TYPE_CHECKING:
    import numpy.typing as npt

    from hsstore.formats.sample import Content, Format
    from hsstore.spec import FinalState
    from hsstore.store import Store

WANTED_FINAL: dict[str, FinalState] = {
    "specforge": "post-norm",
    "speculators": "pre-norm",
    "eagle": "post-norm",
}
"""The final state that files of a format hold. Those of other formats say which one they have."""


class StoreSource:
    """Gives the samples of one store in one format; safe to use from many threads.

    Raises
    ------
    RefusedError
        The store has not what the format needs, or its final state cannot be made into the one that the
        format wants; the message says why.
    """

    def __init__(self, store: Store, form: Format) -> None:
        self._store = store
        self._form = form
        self.name = SampleNames(store)
        model = store.spec.model
        if model.final == "none":
            raise RefusedError(
                f"{store.location} has no final state, and {form.name} files cannot do without one"
            )
        if not model.layers and form.name != "eagle":
            raise RefusedError(
                f"{store.location} has no captured layers, and {form.name} files cannot do without them"
            )
        self.final: FinalState = WANTED_FINAL.get(form.name, model.final)
        """Of the samples that are given."""
        if self.converts:
            self._try_norm()

    @property
    def converts(self) -> bool:
        """Whether the final state has to be brought before, or behind, the final norm."""
        return self.final != self._store.spec.model.final

    def content(self, sample: int, sample_id: str | None = None) -> tuple[Content, float]:
        """Return what the file of a sample holds, and what the conversion of its final state costs.

        Parameters
        ----------
        sample_id : str, optional
            What the file is to call it, if not by its id: looking that up takes milliseconds, where samples
            are asked for in any order.

        Returns
        -------
        content : mapping
        error : float
            Where states before the norm had to be made up from those after it: the largest relative
            difference, in the 2-norm of a row, between these normalised again and the stored ones. Else 0.

        Raises
        ------
        NotExtractedError, CorruptStoreError
            As `Store.states`.
        InputError
            The format cannot hold this sample.
        """
        states, error = self._store.states(sample), 0.0
        if self.converts:
            states, error = self._converted(states)
        found = ForeignSample(
            self._store.input_ids(sample),
            self._store.loss_mask(sample),
            states,
            self.final,
            self.name(sample) if sample_id is None else sample_id,
        )
        try:
            return self._form.write_sample(found), error
        except InputError as problem:
            raise InputError(f"sample {sample} ({self.name(sample)}): {problem}") from None

    def _converted(self, states: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], float]:
        norm, out = self._store.spec.model.norm, np.array(states, order="C")
        if self.final == "post-norm":
            out[:, -1] = apply_norm(states[:, -1], norm, self._weight)
            return out, 0.0
        out[:, -1], error = stand_in_for_pre_norm(states[:, -1], norm, self._weight)
        return out, error

    @cached_property
    def _weight(self) -> npt.NDArray[np.float32]:
        return self._store.plan_array("norm_weight")

    def _try_norm(self) -> None:
        """Find out on one row what is refused of every sample."""
        row = np.ones((1, 1, self._store.spec.model.hidden), np.float32)
        try:
            self._converted(row)
        except InputError as error:
            raise RefusedError(
                f"{self._store.location} holds the {self._store.spec.model.final} state, {self._form.name} files "
                f"the {self.final} one: {error}"
            ) from None
