"""The neutral sample, what every format has to do with it, and how the values of a file are looked at."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from hsstore.errors import InputError

if TYPE_CHECKING:
    import numpy.typing as npt

    from hsstore.spec import FinalState

Content = Mapping[str, Any]
"""What a file holds, by name: arrays, strings, numbers. bfloat16 is that of ml_dtypes."""


@dataclass(frozen=True, slots=True, eq=False)
class ForeignSample:
    """One sample, unshifted: row t holds token t and the states at token t.

    Attributes
    ----------
    input_ids : int32 (T,)
    loss_mask : uint8 (T,), optional
        1 where the token itself is supervised; None where the file does not say.
    states : (T, slots, hidden)
        The captured layers in ascending order, then the final state unless `final` is none.
    final : str
        Whether that is after or before the final norm.
    sample_id : str
        Of the data set; empty where the file does not say.
    """

    input_ids: npt.NDArray[np.int32]
    loss_mask: npt.NDArray[np.uint8] | None
    states: npt.NDArray[Any]
    final: FinalState
    sample_id: str = ""

    @property
    def layers(self) -> int:
        """Captured layers: slots before the final state."""
        return int(self.states.shape[1]) - (self.final != "none")

    @property
    def aux(self) -> npt.NDArray[Any]:
        """The captured layers side by side, (T, layers * hidden), a copy."""
        part = np.ascontiguousarray(self.states[:, : self.layers])
        return part.reshape(len(part), -1)

    @property
    def last(self) -> npt.NDArray[Any]:
        """The final state, (T, hidden), a copy: views would be saved with all that they are a part of."""
        return np.ascontiguousarray(self.states[:, -1])

    def require_final(self, wanted: FinalState, who: str) -> None:
        """Refuse another final state than a format means.

        Raises
        ------
        InputError
        """
        if self.final != wanted:
            raise InputError(f"{who} files hold the {wanted} state, and this one is {self.final}")


@dataclass(frozen=True, slots=True, eq=False)
class ForeignTokens:
    """What a file says of its sample beside the states.

    Attributes
    ----------
    input_ids : int32 (T,)
    loss_mask : uint8 (T,), optional
        None where the file does not say.
    sample_id : str
        Of the data set; empty where the file does not say.
    """

    input_ids: npt.NDArray[np.int32]
    loss_mask: npt.NDArray[np.uint8] | None = None
    sample_id: str = ""


@dataclass(frozen=True, slots=True)
class Hints:
    """What files do not say of themselves."""

    final: FinalState
    """Of files that do not record it."""
    slots: int
    """Captured layers, and the final state if there is one."""


class Format(Protocol):
    """How one project writes samples."""

    @property
    def name(self) -> str:
        """As commands call it."""

    def path(self, row: int, sample_id: str) -> str:
        """Return where a sample lies in a directory of this format."""

    def write_sample(self, sample: ForeignSample) -> Content:
        """Return what the file of a sample holds.

        Raises
        ------
        InputError
            The format cannot hold this sample.
        """

    def read_tokens(self, content: Content) -> ForeignTokens:
        """Return what a file holds beside states, which are not touched: they may be mapped.

        Raises
        ------
        InputError
            As in `read_sample`.
        """

    def read_sample(self, content: Content, hints: Hints) -> ForeignSample:
        """Return the sample that a file holds.

        Raises
        ------
        InputError
            A value is missing or has not the shape that it should have; it is named.
        """


def take(content: Content, name: str) -> Any:  # noqa: ANN401  # whatever a file holds
    """Return one value of a file.

    Raises
    ------
    InputError
        It is not there.
    """
    if name not in content:
        raise InputError(
            f"no {name!r} in the file; it has {', '.join(map(repr, content)) or 'nothing'}"
        )
    return content[name]


def take_row(content: Content, name: str, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Return numbers of shape (T,), from a list or an array, perhaps with a batch axis of one."""
    values = np.asarray(take(content, name))
    if values.ndim == 2 and len(values) == 1:
        values = values[0]
    if values.ndim != 1 or not values.size or values.dtype.kind not in "iub":
        raise InputError(f"{name!r} is {values.dtype} {values.shape}, expected integers (T,)")
    return values.astype(dtype)


def take_matrix(content: Content, name: str, rows: int) -> npt.NDArray[Any]:
    """Return states of shape (rows, width), perhaps with a batch axis of one."""
    values = np.asarray(take(content, name))
    if values.ndim == 3 and len(values) == 1:
        values = values[0]
    if values.ndim != 2 or len(values) != rows:
        raise InputError(f"{name!r} has shape {values.shape}, expected ({rows}, width)")
    return values


def join(aux: npt.NDArray[Any], last: npt.NDArray[Any], hints: Hints) -> npt.NDArray[Any]:
    """Put layers side by side, (T, layers * hidden), and a final state, (T, hidden), into slots.

    Raises
    ------
    InputError
        There are more or fewer layers than there should be.
    """
    rows, hidden = last.shape
    layers, rest = divmod(aux.shape[1], hidden)
    if rest or layers != hints.slots - 1:
        raise InputError(
            f"{aux.shape[1]} values of captured layers a token are {aux.shape[1] / hidden:g} layers of "
            f"width {hidden}; {hints.slots - 1} are expected"
        )
    return np.concatenate([aux.reshape(rows, layers, hidden), last[:, None]], axis=1)
