"""An EAGLE-3 draft: three captured layers fused, one decoder layer, a head over a small vocabulary.

Row t is given the target's states at token t and the token t+1, and predicts token t+2. In what
follows B lines, L rows, H hidden of the target, D tokens of the draft vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn import functional
from typing_extensions import override

if TYPE_CHECKING:
    from collections.abc import Iterator

HEAD_WIDTH = 64
GROUPS = 3
"""Query heads of each key head."""
ROPE_BASE = 10_000.0

Pairs = list[tuple[torch.Tensor, torch.Tensor]]
"""Keys and values, both [B, heads, rows, HEAD_WIDTH]."""


class RmsNorm(nn.Module):
    """`weight * x / rms(x)`."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    @override
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Normalise the last dimension, in float32."""
        return functional.rms_norm(x.float(), x.shape[-1:], self.weight, 1e-5)


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of a head."""

    hidden: int
    """Of the target; a multiple of `HEAD_WIDTH * GROUPS`."""
    layers: int = 3
    """Captured layers that are fused."""
    vocabulary: int = 8192
    """Draft tokens."""
    feed_forward: int = 1536


class DraftHead(nn.Module):
    """The head, without the target's embeddings, which it uses as they are.

    Parameters
    ----------
    scale : tensor [layers * H]
        Of each captured channel, in front of `fuse`: raw channels differ by factors of hundreds. It
        can be folded into `fuse` when the head is exported.
    embeddings : tensor [target vocabulary, H]
    """

    def __init__(self, shape: Shape, scale: torch.Tensor, embeddings: torch.Tensor) -> None:
        super().__init__()
        hidden, kept = shape.hidden, shape.hidden // GROUPS
        self.scale: torch.Tensor
        self.embeddings: torch.Tensor
        self.register_buffer("scale", scale)
        self.register_buffer("embeddings", embeddings, persistent=False)
        self.fuse = _linear(shape.layers * hidden, hidden)
        self.norms = nn.ModuleDict({n: RmsNorm(hidden) for n in ("token", "state", "mlp", "out")})
        self.query, self.key, self.value = (_linear(2 * hidden, w) for w in (hidden, kept, kept))
        self.attention_out = _linear(hidden, hidden)
        self.gate, self.up = (_linear(hidden, shape.feed_forward) for _ in range(2))
        self.down = _linear(shape.feed_forward, hidden)
        self.head = _linear(hidden, shape.vocabulary)

    def features(self, aux: torch.Tensor) -> torch.Tensor:
        """Fuse captured layers [B, L, layers * H] to [B, L, H]."""
        fused: torch.Tensor = self.fuse(aux.float() * self.scale)
        return fused

    def logits(self, state: torch.Tensor) -> torch.Tensor:
        """Return [..., D] of states [..., H]."""
        logits: torch.Tensor = self.head(self.norms["out"](state))
        return logits

    def attend(
        self, state: torch.Tensor, tokens: torch.Tensor, positions: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return queries, keys and values of rows, each [B, query heads, L, HEAD_WIDTH]."""
        x = torch.cat(
            [self.norms["token"](self.embeddings[tokens]), self.norms["state"](state)], dim=-1
        )
        query, key, value = (_heads(part(x)) for part in (self.query, self.key, self.value))
        query, key = _rotate(query, positions), _rotate(key, positions)
        return query, key.repeat_interleave(GROUPS, 1), value.repeat_interleave(GROUPS, 1)

    def finish(self, state: torch.Tensor, attended: torch.Tensor) -> torch.Tensor:
        """Return the states [B, L, H] after the layer."""
        state = state + self.attention_out(attended.transpose(1, 2).flatten(2))
        x = self.norms["mlp"](state)
        after: torch.Tensor = state + self.down(functional.silu(self.gate(x)) * self.up(x))
        return after

    def unroll(self, aux: torch.Tensor, tokens: torch.Tensor, steps: int) -> Iterator[torch.Tensor]:
        """Training-time test: draft `steps` tokens from every row at once, on its own states.

        In step j, row t is at token t+1+j: it attends to what the first step saw up to row t, which
        is what the target gave, and to its own later steps, as it will when it drafts a chain.

        Parameters
        ----------
        tokens : tensor int64 [B, L]
            Token t+1 in row t.

        Yields
        ------
        tensor [B, L, H]
            States of each step, for `logits`; those of step j predict token t+2+j. Its last j rows
            mean nothing.
        """
        state = self.features(aux)
        rows = torch.arange(tokens.shape[1])
        causal = rows[:, None] >= rows[None, :]
        own: Pairs = []
        for step in range(steps):
            query, key, value = self.attend(state, tokens.roll(-step, 1), rows + step)
            own.append((key, value))
            state = self.finish(state, _attend_unrolled(query, own, causal))
            yield state


def _linear(inputs: int, outputs: int) -> nn.Linear:
    layer = nn.Linear(inputs, outputs, bias=False)
    nn.init.normal_(layer.weight, std=0.02)
    return layer


def _heads(x: torch.Tensor) -> torch.Tensor:
    return x.view(*x.shape[:2], -1, HEAD_WIDTH).transpose(1, 2)


def _rotate(x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    frequency = ROPE_BASE ** (-torch.arange(0, HEAD_WIDTH, 2) / HEAD_WIDTH)
    angle = positions[:, None] * frequency
    cosine, sine = (torch.cat([half, half], -1) for half in (angle.cos(), angle.sin()))
    low, high = x.chunk(2, -1)
    turned: torch.Tensor = x * cosine + torch.cat([-high, low], -1) * sine
    return turned


def _attend_unrolled(query: torch.Tensor, own: Pairs, causal: torch.Tensor) -> torch.Tensor:
    """Attend to the first step's rows, causally, and to the same row of every later step."""
    (key, value), later = own[0], own[1:]
    scores = [(query @ key.transpose(-1, -2)).masked_fill(~causal, float("-inf"))]
    scores += [(query * key).sum(-1, keepdim=True) for key, _ in later]
    weights = (torch.cat(scores, -1) * HEAD_WIDTH**-0.5).softmax(-1)
    attended: torch.Tensor = weights[..., : causal.shape[1]] @ value
    for at, (_, value) in enumerate(later):
        attended = attended + weights[..., causal.shape[1] + at, None] * value
    return attended
