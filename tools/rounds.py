"""Take turns: everyone in every round of a benchmark, and hsstore's speed relative to each."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Rounds = list[dict[str, float]]
    """The speed of everyone in every round."""


@dataclass(frozen=True, slots=True)
class Unit:
    """How speeds are written."""

    key: str
    """In names of the JSON."""
    text: str
    digits: str
    """A format of Python's."""


def take_turns(
    names: Sequence[str],
    rounds: int,
    speed: Callable[[str, int], float],
    prepare: Callable[[], None],
) -> Rounds:
    """Measure everyone in every round; every other round is backwards.

    Parameters
    ----------
    rounds : int
        One more is run, which warms up and does not count.
    speed : callable
        Given a name and the number of the round.
    prepare : callable
        Called before each measurement.
    """
    results: Rounds = []
    for number in range(rounds + 1):
        results.append(dict.fromkeys(names, 0.0))
        for name in names if number % 2 == 0 else reversed(names):
            prepare()
            results[-1][name] = speed(name, number)
    return results[1:]


def warm() -> None:
    """Leave everything in the page cache."""


def summary(prefix: str, results: Rounds, unit: Unit) -> dict[str, Any]:
    """Print the speeds of one kind of rounds, and return what goes into the JSON.

    A ratio is that of two speeds of one round; the median is taken, and the smallest and largest.
    """
    print(prefix.replace("_", " "))
    speeds: dict[str, float] = {}
    spread: dict[str, list[float]] = {}
    medians: dict[str, float] = {}
    for name in results[0]:
        speeds[name] = statistics.median(one[name] for one in results)
        line = f"  {name:<14} {speeds[name]:{unit.digits}} {unit.text}"
        if name != "hsstore":
            ratios = [one["hsstore"] / one[name] for one in results]
            key = f"{prefix}_vs_{name}"
            medians[key], spread[key] = statistics.median(ratios), [min(ratios), max(ratios)]
            line += f"  hsstore {medians[key]:.2f} times ({min(ratios):.2f} to {max(ratios):.2f})"
        print(line, flush=True)
    return {**medians, f"{prefix}_spread": spread, f"{prefix}_{unit.key}": speeds}
