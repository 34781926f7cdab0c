"""Choose the samples of a quick look, by seed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from hsstore.errors import InputError

if TYPE_CHECKING:
    import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class SampleChoice:
    """How many samples to look at."""

    asked: str
    """`5%`, or a number of samples."""
    seed: int = 0

    def __post_init__(self) -> None:
        self.count(100)

    def count(self, samples: int) -> int:
        """Return how many of so many samples are taken; at least one, if there is one.

        Raises
        ------
        InputError
        """
        text = self.asked.strip()
        try:
            wanted = samples * float(text[:-1]) / 100 if text.endswith("%") else float(int(text))
        except ValueError:
            wanted = np.nan
        share_is_right = not text.endswith("%") or wanted <= samples
        if not (wanted > 0 and share_is_right):
            raise InputError(
                f"--sample {self.asked}: neither a share such as 5% nor a number of samples"
            )
        return min(samples, int(np.ceil(wanted)))

    def choose(self, candidates: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
        """Mark the chosen ones of the candidates, bool (samples,)."""
        numbers = np.flatnonzero(candidates)
        generator = np.random.default_rng(self.seed)
        chosen = np.zeros_like(candidates)
        count = self.count(len(numbers)) if len(numbers) else 0
        chosen[generator.choice(numbers, count, replace=False)] = True
        return chosen
