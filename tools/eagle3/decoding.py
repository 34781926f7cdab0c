"""Greedy decoding, plain and with a draft: a chain of drafted tokens, verified in one forward."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch.nn import functional

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tools.eagle3.head import DraftHead
    from tools.eagle3.target import TargetModel

CHAIN = 5
"""Tokens drafted a round."""


@dataclass(slots=True)
class Decoded:
    """What decoding one prompt gave."""

    tokens: list[int] = field(default_factory=list)
    rounds: list[int] = field(default_factory=list)
    """Tokens that each round gave: those accepted and the target's own one."""


def decode_plainly(target: TargetModel, prompt: Sequence[int], new_tokens: int) -> list[int]:
    """Return up to so many tokens, the end included, one by one."""
    cache = target.begin()
    tokens = [target.read(prompt, cache)[0][-1]]
    while len(tokens) < new_tokens and tokens[-1] not in target.ends:
        tokens += target.read(tokens[-1:], cache)[0]
    return tokens


@torch.inference_mode()
def decode_with_draft(
    target: TargetModel, draft: Draft, prompt: Sequence[int], new_tokens: int
) -> Decoded:
    """Do the same, with a draft; whatever it drafts, the tokens are those of plain decoding."""
    cache, memory, found = target.begin(), Memory(), Decoded()
    answers, aux = target.read(prompt, cache)
    found.tokens.append(answers[-1])
    draft.take(memory, aux, [*prompt[1:], answers[-1]])
    while len(found.tokens) < new_tokens and found.tokens[-1] not in target.ends:
        drafted = draft.chain(memory, CHAIN)
        answers, aux = target.read([found.tokens[-1], *drafted], cache)
        accepted = next((at for at in range(CHAIN) if answers[at] != drafted[at]), CHAIN)
        new = answers[: accepted + 1]
        if accepted < CHAIN:
            cache.crop(accepted - CHAIN)  # so many are removed
        draft.take(memory, aux[: accepted + 1], new)
        ends = [at for at, token in enumerate(new) if token in target.ends]
        found.tokens += new[: ends[0] + 1] if ends else new
        found.rounds.append(ends[0] + 1 if ends else len(new))
    del found.tokens[new_tokens:]
    return found


class Memory:
    """What a draft remembers of one sequence: keys and values of the rows that the target gave."""

    def __init__(self) -> None:
        self.keys = self.values = torch.zeros(1, 0, 0, 0)
        self.state = torch.zeros(1, 0, 0)
        """[1, 1, H]: of the last row; it predicts the token behind."""

    @property
    def rows(self) -> int:
        """How many rows it has."""
        return self.keys.shape[2]

    def extended(
        self, keys: torch.Tensor, values: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return all keys and values, with more behind."""
        if not self.rows:
            return keys, values
        return torch.cat([self.keys, keys], 2), torch.cat([self.values, values], 2)


class Draft:
    """A head that drafts.

    Parameters
    ----------
    offsets : tensor int64 [D]
        Draft token i is token `i + offsets[i]` of the target.
    """

    def __init__(self, head: DraftHead, offsets: torch.Tensor) -> None:
        self._head = head
        self._tokens = torch.arange(len(offsets)) + offsets

    def take(self, memory: Memory, aux: torch.Tensor, following: Sequence[int]) -> None:
        """Take rows from the target: captured layers [n, layers * H], and the token after each."""
        state, before = self._head.features(aux[None]), memory.rows
        positions = torch.arange(before, before + len(following))
        query, key, value = self._head.attend(state, torch.tensor([following]), positions)
        memory.keys, memory.values = memory.extended(key, value)
        visible = torch.arange(memory.rows) <= positions[:, None]
        attended = functional.scaled_dot_product_attention(
            query, memory.keys, memory.values, visible
        )
        memory.state = self._head.finish(state, attended)[:, -1:]

    def chain(self, memory: Memory, count: int) -> list[int]:
        """Draft so many tokens, each from the one before; the memory stays as it is."""
        state, drafted = memory.state, list[int]()
        longer = Memory()
        longer.keys, longer.values = memory.keys, memory.values
        while True:
            drafted.append(int(self._tokens[self._head.logits(state)[0, -1].argmax()]))
            if len(drafted) == count:
                return drafted
            position = torch.tensor([longer.rows])
            query, key, value = self._head.attend(state, torch.tensor([drafted[-1:]]), position)
            longer.keys, longer.values = longer.extended(key, value)
            attended = functional.scaled_dot_product_attention(query, longer.keys, longer.values)
            state = self._head.finish(state, attended)
