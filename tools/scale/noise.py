"""A server whose states are noise that follows from the tokens: the embedded engine without a model.

python tools/scale/noise.py SPOOL HIDDEN
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from extraction.engines.embedded import ServeOptions, serve_engine
from extraction.engines.engine import EngineDescription, States
from extraction.spool import Norm
from tools.scale import kimi

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy.typing as npt

POOL_ROWS = 4099
"""Different rows of noise; a prime, so that equal tokens at different places differ."""


class NoiseEngine:
    """Row t of the states is one of a few thousand rows of noise, by token and place."""

    def __init__(self, hidden: int) -> None:
        rng = np.random.default_rng(0)
        shape = (POOL_ROWS, kimi.SLOTS, hidden)
        scale = rng.lognormal(0.0, 0.5, shape[1:]).astype(np.float32)
        values = rng.standard_normal(shape, np.float32) * scale
        self.pool = (values.view(np.uint32) >> 16).astype(np.uint16)
        self.description = EngineDescription(
            name="noise",
            version="1",
            model="synthetic",
            num_layers=kimi.NUM_LAYERS,
            hidden=hidden,
            layers=kimi.LAYERS,
            final="post-norm",
            dtype="bfloat16",
            norm=Norm("rmsnorm", kimi.EPSILON, np.ones(hidden, "<f4").tobytes()),
            capture_hash=kimi.CAPTURE_HASH,
            vocabulary=kimi.VOCABULARY,
            max_tokens=1 << 20,
        )

    def capture(
        self, input_ids: npt.NDArray[np.int32], *, predict: bool, progress: Callable[[], None]
    ) -> States:
        """Look the rows up."""
        progress()
        rows = (input_ids * 31 + np.arange(len(input_ids))) % POOL_ROWS
        return States(self.pool[rows], 0 if predict else None)


@contextmanager
def serving(spool: Path, hidden: int) -> Iterator[str]:
    """Serve in a process of its own; gives the URL."""
    command = [sys.executable, __file__, str(spool), str(hidden)]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        start_new_session=True,
    )
    try:
        ready = process.stdout.readline().split() if process.stdout else []
        if ready[:1] != ["ready"]:
            raise RuntimeError(f"the noise server did not start: {ready}")
        yield ready[1]
    finally:
        process.terminate()
        process.wait(30)


def main() -> None:
    """Serve until SIGTERM."""
    spool, hidden = Path(sys.argv[1]), int(sys.argv[2])
    options = ServeOptions(Path("synthetic"), spool=spool, piece_tokens=8192, threads=1)
    asyncio.run(serve_engine(lambda: NoiseEngine(hidden), options))


if __name__ == "__main__":
    main()
