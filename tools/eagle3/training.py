"""Train a head: soft targets from the target's final states, several drafted tokens a row."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch.nn import functional

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hsstore.loaders import Eagle3Batch, Eagle3Stream
    from tools.eagle3.head import DraftHead

DECAY = 0.8
"""Weight of each drafted token, of the one before."""
WARM_UP_STEPS = 20
LAST_RATE = 0.05
"""Of the learning rate."""
PADDED_ROWS = 64
"""Lines are padded to multiples of this: tensors of ever new shapes make the heap grow."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """How a head is trained."""

    steps: int
    rate: float = 6e-4
    drafted: int = 4
    """Tokens a row: the length of the training-time test."""


@dataclass(frozen=True, slots=True)
class Target:
    """What the target says of a draft token."""

    rows: torch.Tensor
    """[D, H]: rows of its output embedding, of the draft's tokens."""
    in_draft: torch.Tensor
    """bool [target vocabulary]."""


class Loss(NamedTuple):
    """Cross entropies to the target's own distribution."""

    total: torch.Tensor
    """Of all rows, in nats."""
    rows: int

    @property
    def mean(self) -> torch.Tensor:
        """Of a row; 0 where there is none."""
        return self.total / max(self.rows, 1)


def train(
    head: DraftHead, target: Target, stream: Eagle3Stream, recipe: Recipe
) -> Iterator[tuple[int, float]]:
    """Train, and yield each step's number and the mean loss of its first drafted token, in nats."""
    optimiser = torch.optim.AdamW(head.parameters(), recipe.rate, (0.9, 0.95), weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: _rate(step, recipe.steps))
    batches = _endless(stream)
    for step in range(recipe.steps):
        losses = drafted_losses(head, target, next(batches), recipe.drafted)
        optimiser.zero_grad()
        loss = torch.stack([DECAY**at * loss.mean for at, loss in enumerate(losses)]).sum()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(head.parameters(), 1.0)
        optimiser.step()
        schedule.step()
        yield step, float(losses[0].mean.detach())


def drafted_losses(head: DraftHead, target: Target, batch: Eagle3Batch, drafted: int) -> list[Loss]:
    """Return the loss of each drafted token.

    Only rows whose token is supervised, and whose true token the draft has, count.
    """
    batch = _padded(batch)
    tokens, final = batch["input_ids"], batch["target_states"]
    supervised, truth = batch["loss_mask"] == 1, tokens.roll(-1, 1)
    supervised &= target.in_draft[truth]
    # The row behind must be of the sample too: it has the true token.
    supervised &= batch["attention_mask"].roll(-1, 1) == 1
    supervised[:, -1] = False
    losses = []
    for step, state in enumerate(head.unroll(batch["aux_states"], tokens, drafted)):
        here = supervised[:, step:]  # row t drafts what row t + step is about
        logits = head.logits(state[:, : here.shape[1]][here])
        with torch.no_grad():
            wanted = functional.linear(final[:, step:][here].float(), target.rows).softmax(-1)
        total = functional.cross_entropy(logits, wanted, reduction="sum")
        losses.append(Loss(total, len(logits)))
    return losses


def _rate(step: int, steps: int) -> float:
    cosine = 0.5 * (1 + math.cos(math.pi * step / steps))
    return min(1.0, (step + 1) / WARM_UP_STEPS) * (LAST_RATE + (1 - LAST_RATE) * cosine)


def _endless(stream: Eagle3Stream) -> Iterator[Eagle3Batch]:
    epoch = 0
    while True:
        stream.set_epoch(epoch)
        yield from stream
        epoch += 1


def _padded(batch: Eagle3Batch) -> Eagle3Batch:
    def pad(x: torch.Tensor) -> torch.Tensor:
        return functional.pad(x, (*(0, 0) * (x.dim() - 2), 0, more))

    more = -batch["input_ids"].shape[1] % PADDED_ROWS
    return {
        **batch,
        "input_ids": pad(batch["input_ids"]),
        "loss_mask": pad(batch["loss_mask"]),
        "attention_mask": pad(batch["attention_mask"]),
        "aux_states": pad(batch["aux_states"]),
        "target_states": pad(batch["target_states"]),
    }
