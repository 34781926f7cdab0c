"""An engine without a model: no torch, so a server over it starts at once."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import numpy as np

from extraction.engines.engine import EngineDescription, States

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

HIDDEN, SLOTS, VOCABULARY, MAX_TOKENS = 8, 3, 100, 2000


class ArithmeticEngine:
    """States that are a simple function of token, position and slot; waits when told to."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.go.set()
        self.seen: list[list[int]] = []
        self.description = EngineDescription(
            name="arithmetic",
            version="1",
            model="none",
            num_layers=4,
            hidden=HIDDEN,
            layers=(0, 2),
            final="post-norm",
            dtype="bfloat16",
            norm=None,
            capture_hash="c" * 64,
            vocabulary=VOCABULARY,
            max_tokens=MAX_TOKENS,
        )

    def capture(
        self, input_ids: npt.NDArray[np.int32], *, predict: bool, progress: Callable[[], None]
    ) -> States:
        """See `Engine.capture`; fails on a first token of 13."""
        self.go.wait()
        self.seen.append(input_ids.tolist())
        progress()
        if input_ids[0] == 13:
            raise RuntimeError("unlucky")
        return States(self.states(input_ids), int(input_ids[-1]) if predict else None)

    @staticmethod
    def states(input_ids: npt.NDArray[np.int32]) -> npt.NDArray[np.uint16]:
        """Return what `capture` gives."""
        rows = len(input_ids)
        base = np.arange(rows * SLOTS * HIDDEN, dtype=np.uint32).reshape(rows, SLOTS, HIDDEN)
        return (base * 31 + input_ids[:, None, None].astype(np.uint32)).astype(np.uint16)
