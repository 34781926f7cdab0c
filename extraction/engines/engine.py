"""What the HTTP server needs of a model: the seam between serving and computing."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Protocol

from hsstore.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy as np
    import numpy.typing as npt

    from extraction.spool import Norm


@dataclass(frozen=True, slots=True)
class EngineDescription:
    """A loaded model, and what is captured of it; the fields of `ServerInfo` that depend on it."""

    name: str
    version: str
    """Of the library that computes."""
    model: str
    num_layers: int
    hidden: int
    layers: tuple[int, ...]
    """0-based decoder layers whose outputs are captured, ascending."""
    final: str
    dtype: str
    norm: Norm | None
    capture_hash: str
    vocabulary: int
    """Token ids are below this."""
    max_tokens: int
    """Longest request."""
    flags: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class States:
    """The result of one forward over T tokens."""

    hidden: npt.NDArray[Any]
    """Shape (T, slots, hidden); uint16 bits for bfloat16, else float16 or float32."""
    next_token: int | None
    """Most likely token after the last one; None where it was not asked for."""


class Engine(Protocol):
    """A model that is loaded. `capture` may be called from several threads at once."""

    @property
    def description(self) -> EngineDescription:
        """What is loaded and captured."""

    def capture(
        self,
        input_ids: npt.NDArray[np.int32],
        *,
        predict: bool,
        progress: Callable[[], None],
    ) -> States:
        """Run one sequence, shape (T,), alone: the result depends on nothing else.

        `predict` asks for the next token. `progress` is called while it computes.
        """


def resolve_layers(layers: Sequence[int] | None, num_layers: int) -> tuple[int, ...]:
    """Check the wanted layers, or choose EAGLE-3's: the outputs of 1, n/2 - 1 and n - 4.

    >>> resolve_layers(None, 61)
    (1, 29, 57)

    Raises
    ------
    InputError
        A layer is named twice or is not in the model, or it is too small for the default.
    """
    wanted = (1, num_layers // 2 - 1, num_layers - 4) if layers is None else tuple(sorted(layers))
    ascending = all(low < high for low, high in pairwise(wanted))
    if ascending and all(0 <= layer < num_layers for layer in wanted):
        return wanted
    if layers is None:
        raise InputError(
            f"a model of {num_layers} layers has no three different default layers "
            f"(they would be {wanted}): name them with --layers"
        )
    raise InputError(
        f"--layers {','.join(map(str, layers))}: they must be different and in "
        f"0..{num_layers - 1} (the state after 0-based decoder layer k)"
    )
