"""Where training starts: what can be said in closed form before the first step.

The head's rows are the target's own, and `fuse` is the ridge regression from the captured layers at
token t to the target's final state at token t+1. That alone is worth tens of training steps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hsstore.loaders import Eagle3Batch
    from tools.eagle3.head import DraftHead

SKIPPED_ROWS = 3
"""At the beginning of a sample a few channels are a thousand times as large as elsewhere."""
CLAMP = 8.0
RIDGE = 100.0


def pairs(batches: Iterable[Eagle3Batch]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return captured layers [n, layers * H] at t, and final states [n, H] at t+1, in float32."""
    aux, final = [], []
    for batch in batches:
        rows = (batch["attention_mask"] == 1) & (batch["position_ids"] >= SKIPPED_ROWS)
        aux.append(batch["aux_states"][rows].float())
        final.append(batch["target_states"][rows].float())
    return torch.cat(aux), torch.cat(final)


def channel_scale(aux: torch.Tensor) -> torch.Tensor:
    """Return 1 / rms of each channel [layers * H]."""
    return 1 / aux.square().mean(0).sqrt().clamp(min=1e-3)


@torch.no_grad()
def start_by_ridge(head: DraftHead, aux: torch.Tensor, final: torch.Tensor) -> float:
    """Set `fuse` and the last norm; return the share of the variance that is explained."""
    x = (aux * head.scale).clamp(-CLAMP, CLAMP)
    weight = torch.linalg.solve(x.T @ x + RIDGE * torch.eye(x.shape[1]), x.T @ final)
    head.fuse.weight.copy_(weight.T)
    head.norms["out"].weight.fill_(float(final.square().mean().sqrt()))  # type: ignore[operator]
    left = (x @ weight - final).square().sum() / (final - final.mean(0)).square().sum()
    return 1 - float(left)
