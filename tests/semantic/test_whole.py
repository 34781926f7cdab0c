"""A fault of all samples, where the store's own population shows nothing that is usual."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from hsstore.report import SemanticKind as Kind
from hsstore.semantic import check_semantics
from hsstore.semantic.context import Fitted
from hsstore.semantic.fit import Learned
from hsstore.semantic.whole import judge_slots
from hsstore.tasks import Where
from tests.semantic.synthetic import Formula, make_store

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import numpy.typing as npt

    Bits = npt.NDArray[np.uint16]


def _swapped(slots: list[int]) -> Callable[[list[Bits]], list[Bits]]:
    def plant(states: list[Bits]) -> list[Bits]:
        found = [bits.copy() for bits in states]
        for at, bits in enumerate(found):
            other = states[(at + 2) % len(states)]  # every second one is as long
            bits[:, slots] = other[: len(bits), slots]
        return found

    return plant


def _shifted(away: int) -> Callable[[list[Bits]], list[Bits]]:
    def plant(states: list[Bits]) -> list[Bits]:
        found = [bits.copy() for bits in states]
        for bits, right in zip(found, states, strict=True):
            bits[:, 2] = np.roll(right[:, 2], -away, axis=0)
        return found

    return plant


@pytest.mark.parametrize(
    ("plant", "kind", "slots"),
    [
        (_swapped([0, 1, 2]), Kind.WRONG_TOKENS, [0, 1, 2]),
        (_swapped([1]), Kind.WRONG_TOKENS, [1]),
        (_swapped([2]), Kind.WRONG_TOKENS, [2]),
        (_shifted(1), Kind.ROWS_SHIFTED, [2]),
        (_shifted(-1), Kind.ROWS_SHIFTED, [2]),
    ],
    ids=["swapped", "auxiliary-swapped", "final-swapped", "final+1", "final-1"],
)
def test_samples_that_are_all_wrong_in_the_same_way_are_seen(
    plant: Callable[[list[Bits]], list[Bits]],
    kind: Kind,
    slots: list[int],
    directory: Path,
    checkpoint: Path,
    texts: list[list[int]],
) -> None:
    states = plant([Formula().capture(ids) for ids in texts])
    store = make_store(directory / "store.zarr", texts, states)

    report = check_semantics(store.path, checkpoint, Where(workers=1))

    whole = [(bad.kind, list(bad.slots)) for bad in report.bad if bad.sample is None]
    assert whole == [(kind, [slot]) for slot in slots]


@pytest.mark.parametrize(
    ("hidden", "rows", "fit", "kinds"),
    [
        (576, 5000, (0.5, 0.8, 0.4), []),
        (576, 5000, (0.8, 0.5, 0.4), [Kind.ROWS_SHIFTED]),
        (576, 5000, (0.07, 0.06, 0.05), [Kind.WRONG_TOKENS]),
        (576, 2000, (0.07, 0.06, 0.05), []),
        (2048, 50_000, (0.07, 0.06, 0.05), []),
        (576, 100, (np.nan, np.nan, np.nan), []),
    ],
    ids=["good", "shifted", "told-nothing", "few-rows", "wide", "no-map"],
)
def test_a_slot_that_tells_nothing_is_bad_where_it_is_known_how_much_a_good_one_tells(
    hidden: int, rows: int, fit: tuple[float, ...], kinds: list[Kind]
) -> None:
    learned = Learned(Fitted(), np.array([fit]), rows)

    assert [bad.kind for bad in judge_slots(learned, hidden)] == kinds
