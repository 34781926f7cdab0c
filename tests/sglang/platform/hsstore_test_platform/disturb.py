"""A server that computes otherwise in a batch than alone, as with a broken kernel or graph.

Active while the file is there that HS_DISTURB_BATCHES names: what forwards of several prompts hand
to hsstore's plugin is wrong by a fifth then. What the witness saves stays right, and so does what
SGLang goes on with.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

FILE = "HS_DISTURB_BATCHES"
_FACTOR = 1.2


def disturb(output: Any, _runner: Any, batch: Any, *_: Any, **__: Any) -> None:
    """Replace the captured states of a batch; the tensors themselves are SGLang's."""
    several = batch.forward_mode.is_extend() and len(batch.rids or ()) > 1
    if several and Path(os.environ[FILE]).exists():
        states = output.logits_output
        states.hidden_states = states.hidden_states * _FACTOR
        states.last_hidden_states = states.last_hidden_states * _FACTOR
