"""The position in an epoch, as a plain dict that JSON and torch.save take."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict, get_type_hints

from hsstore.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Mapping


class Order(TypedDict):
    """What decides the sequence of batches."""

    store: str
    """UUID of the store."""
    batch_size: int | None
    pack_rows: int | None
    max_length: int | None
    shuffle: bool
    seed: int
    buffer_samples: int


class StreamState(TypedDict):
    """Where a stream stands. `start` batches have been dealt to all ranks together."""

    order: Order
    samples: str
    """Which samples: `decode_samples`. The store may have gained some since."""
    epoch: int
    start: int
    taken: int
    """Batches that one worker process has yielded since; 0 where the position is that of a whole rank."""
    share: tuple[int, int, int, int]
    """Rank, ranks, worker, workers: of the worker whose position it is."""


def check_state(
    state: Mapping[str, object], order: Order, share: tuple[int, int, int, int]
) -> None:
    """Refuse a state that does not belong to this stream.

    Raises
    ------
    InputError
    """
    if missing := [name for name in get_type_hints(StreamState) if name not in state]:
        raise InputError(f"this is no state of a stream: {', '.join(missing)} missing")
    theirs = state["order"]
    for name, mine in order.items():
        other = theirs.get(name) if isinstance(theirs, dict) else None
        if other != mine:
            raise InputError(
                f"the state is of a stream with {name}={other!r}; this one has {mine!r}: make it with "
                "the same options"
            )
    if state["taken"] and tuple(state["share"]) != share:  # type: ignore[arg-type]  # checked by use
        raise InputError(
            f"the state is of one worker process, (rank, ranks, worker, workers) = {state['share']}, "
            f"and this is {share}: resume with the same numbers, or use StreamLoader, whose states fit "
            "any"
        )
