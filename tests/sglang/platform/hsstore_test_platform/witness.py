"""What the server held: every prefill chunk of every rank, saved by code that is not hsstore's.

Active when HS_WITNESS_DIR is set. A file per request, chunk and rank, named
`<rid>.<start>.<dp rank>-<tp rank>.<n-th forward>.npz`: tokens (rows,), aux (rows, layers * hidden),
final (rows, hidden). bfloat16 is saved as its bits, uint16.
"""

from __future__ import annotations

import itertools
import logging
import os
import re
from pathlib import Path
from typing import Any

import numpy as np

logger = logging.getLogger(__name__)

_RID = re.compile(r"hs-[a-z0-9]+-\d+-\d+-\d+")
"""Ids of clients. Others may hold anything, a path too."""
_forwards = itertools.count()


def register() -> None:
    """Entry point `sglang.srt.plugins`."""
    if not os.environ.get("HS_WITNESS_DIR"):
        return
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    from hsstore_test_platform import disturb

    # Inside of what hsstore's plugin hooks: whatever the plugin has seen has its file here, also
    # when the server is killed in between.
    target = "sglang.srt.model_executor.model_runner.ModelRunner._forward_raw"
    HookRegistry.register(target, after_forward, HookType.AFTER)
    if os.environ.get(disturb.FILE):  # behind the witness, and before the plugin
        HookRegistry.register(target, disturb.disturb, HookType.AFTER)


def after_forward(output: Any, runner: Any, batch: Any, *_: Any, **__: Any) -> None:
    """Save what a forward computed; an exception here would kill the server."""
    try:
        if batch.forward_mode.is_extend() and batch.rids:
            _save(output.logits_output, batch, Path(os.environ["HS_WITNESS_DIR"]))
    except Exception:  # a server must not die of its witness; the test misses the file
        logger.exception("the witness could not save a forward")


def _save(output: Any, batch: Any, directory: Path) -> None:
    from sglang.srt.runtime_context import get_parallel

    parallel = get_parallel()
    replica = parallel.attn_dp_rank if parallel.attn_dp_size > 1 else parallel.dp_rank or 0
    rank = f"{replica}-{parallel.tp_rank}"
    forward, row = next(_forwards), 0
    for rid, rows, start in zip(
        batch.rids, batch.extend_seq_lens_cpu, batch.extend_prefix_lens_cpu, strict=True
    ):
        piece = slice(row, row + rows)
        row += rows
        if not _RID.fullmatch(rid):
            continue
        path = directory / f"{rid}.{start}.{rank}.{forward}.npz"
        temporary = path.with_suffix(".tmp")
        with temporary.open("wb") as file:
            np.savez(
                file,
                tokens=batch.input_ids[piece].cpu().numpy(),
                aux=_bits(output.hidden_states[piece]),
                final=_bits(output.last_hidden_states[piece]),
            )
        temporary.rename(path)


def _bits(states: Any) -> Any:
    import torch

    states = states.detach().to("cpu")
    if states.dtype == torch.bfloat16:
        return states.view(torch.int16).numpy().view(np.uint16)
    return states.numpy()
