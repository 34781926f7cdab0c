"""Continue many sequences by a token each, with a model of transformers; needs torch.

A cache row a sequence, filled from the left, however long the others are: a new token is written
behind the last of its own sequence, and a mask hides what lies behind that. So sequences come and
go, and nothing is padded or moved but the last row when another one leaves.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, Final

import torch
import transformers
from typing_extensions import override

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    import numpy.typing as npt

    from extraction.engines.sampling import Sampling

CACHE_BYTES: Final = 1 << 30
"""Of keys and values, in one decoder, spare rows included; a single sequence may take more."""
GROW_TOKENS: Final = 128


class TransformersDecoder:
    """Sequences that grow side by side; see `extraction.engines.generation.Decoder`.

    Parameters
    ----------
    decoder : module
        Tokens to the state that `head` takes, with full attention in all of its layers.
    head : module
        To logits.
    """

    def __init__(
        self,
        decoder: Any,  # noqa: ANN401  # any model class of transformers
        head: Callable[[torch.Tensor], torch.Tensor],
        stops: frozenset[int],
    ) -> None:
        self._decoder = decoder
        self._head = head
        self.stop_token_ids = stops
        self._cache_name = cache_name(decoder)
        self._cache = RaggedCache()
        self._last: list[int] = []
        self._sampling: list[Sampling] = []

    def has_room(self, tokens: int) -> bool:
        """Tell whether a sequence that may grow to so many tokens can join."""
        return self._cache.bytes_with(tokens) <= CACHE_BYTES

    @torch.inference_mode()
    def add(self, input_ids: npt.NDArray[np.int32], sampling: Sampling) -> int:
        """Take a sequence in, behind the others; return the first token of its answer."""
        own = transformers.DynamicCache()
        ids = torch.from_numpy(input_ids).long()[None]
        state = self._run(ids, own)[:, -1]
        self._cache.add(own, len(input_ids) + sampling.max_new_tokens)
        self._sampling.append(sampling)
        self._last += self._choose(state, [sampling])
        return self._last[-1]

    @torch.inference_mode()
    def step(self) -> list[int]:
        """Continue all sequences by the token that each got last; return the next of each."""
        ids, lengths = torch.tensor(self._last)[:, None], self._cache.lengths
        behind = torch.arange(int(lengths.max()) + 1) > lengths[:, None]
        mask = torch.zeros(behind.shape, dtype=self._decoder.dtype).masked_fill_(
            behind, torch.finfo(self._decoder.dtype).min
        )
        states = self._run(
            ids, self._cache, position_ids=lengths[:, None], attention_mask=mask[:, None, None]
        )
        self._cache.lengths = lengths + 1
        self._last = self._choose(states[:, 0], self._sampling)
        return list(self._last)

    @torch.inference_mode()
    def remove(self, place: int) -> None:
        """Drop one sequence; the last one takes its place."""
        self._last[place], self._sampling[place] = self._last[-1], self._sampling[-1]
        del self._last[-1], self._sampling[-1]
        self._cache.remove(place)

    def _run(self, ids: torch.Tensor, cache: transformers.Cache, **more: Any) -> torch.Tensor:  # noqa: ANN401
        given = {self._cache_name: cache, "use_cache": True, **more}
        states: torch.Tensor = self._decoder(input_ids=ids, **given).last_hidden_state
        return states

    def _choose(self, states: torch.Tensor, sampling: list[Sampling]) -> list[int]:
        logits = self._head(states).float()
        chosen: list[int] = logits.argmax(-1).tolist()
        for place, one in enumerate(sampling):
            if one.temperature > 0:
                odds = (logits[place] / one.temperature).softmax(-1)
                chosen[place] = int(torch.multinomial(odds, 1))
        return chosen


def cache_name(model: Any) -> str:  # noqa: ANN401  # any model class
    """Return what a model calls the argument that its cache is given by."""
    return "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"


class RaggedCache(transformers.DynamicCache):
    """Keys and values of sequences of different lengths, [rows, heads, tokens, width] a layer.

    Attributes
    ----------
    lengths : tensor [rows]
        Tokens of each sequence.
    """

    def __init__(self) -> None:
        super().__init__()
        self.lengths = torch.zeros(0, dtype=torch.int64)
        self._rooms: list[int] = []
        """Tokens that each may grow to."""
        self._held: list[tuple[torch.Tensor, torch.Tensor]] = []
        """By layer. There may be more rows and tokens than are used."""

    def bytes_with(self, tokens: int) -> int:
        """Return what it takes with one more sequence, of up to so many tokens; no row to spare."""
        rooms = [*self._rooms, tokens]
        return len(rooms) * _whole(max(rooms)) * self._token_bytes()

    def add(self, own: transformers.DynamicCache, room_tokens: int) -> None:
        """Copy the keys and values of one sequence; it may grow to so many tokens."""
        row, length = len(self.lengths), own.get_seq_length()
        layers: list[Any] = own.layers  # of the kind that has keys and values
        if not self._held:
            self._held = [(layer.keys[:, :, :0], layer.values[:, :, :0]) for layer in layers]
        self._rooms.append(room_tokens)
        self._make_room()
        for (keys, values), layer in zip(self._held, layers, strict=True):
            keys[row, :, :length], values[row, :, :length] = layer.keys[0], layer.values[0]
        self.lengths = torch.cat([self.lengths, torch.tensor([length])])

    def remove(self, place: int) -> None:
        """Drop one sequence; the last one takes its place."""
        last = len(self.lengths) - 1
        if not last:
            self._held = []  # what a long sequence took is given back
        elif place != last:
            length = int(self.lengths[last])
            for half in (half for pair in self._held for half in pair):
                half[place, :, :length] = half[last, :, :length]
        self.lengths[place], self._rooms[place] = self.lengths[last], self._rooms[last]
        self.lengths = self.lengths[:-1]
        del self._rooms[-1]

    @override
    def update(
        self,
        key_states: torch.Tensor,
        value_states: torch.Tensor,
        layer_idx: int,
        *_: object,
        **__: object,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write one token of each sequence; return all, up to the longest."""
        rows, tokens = torch.arange(len(self.lengths)), int(self.lengths.max()) + 1
        pair = self._held[layer_idx]
        for half, new in zip(pair, (key_states, value_states), strict=True):
            half[rows, :, self.lengths] = new[:, :, 0]
        keys, values = (half[: len(rows), :, :tokens] for half in pair)
        return keys, values

    @override
    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Return the tokens of the longest sequence."""
        return int(self.lengths.max())

    def _token_bytes(self) -> int:
        halves = [half for pair in self._held for half in pair]
        return sum(half.shape[1] * half.shape[3] * half.itemsize for half in halves)

    def _make_room(self) -> None:
        """Make the tensors anew where they are too small, or more than twice as wide as needed."""
        rows, tokens = len(self._rooms), _whole(max(self._rooms))
        held_rows, _, held_tokens, _ = self._held[0][0].shape
        if rows <= held_rows and tokens <= held_tokens <= 2 * tokens:
            return
        doubled = 1 << (rows - 1).bit_length()
        rows = max(rows, min(doubled, CACHE_BYTES // (tokens * self._token_bytes())))
        used, longest = len(self.lengths), max(self.lengths.tolist(), default=0)
        for at, pair in enumerate(self._held):  # one after the other: only one is there twice
            keys, values = (_moved(half[:used, :, :longest], rows, tokens) for half in pair)
            self._held[at] = keys, values


def _whole(tokens: int) -> int:
    return -(-tokens // GROW_TOKENS) * GROW_TOKENS


def _moved(used: torch.Tensor, rows: int, tokens: int) -> torch.Tensor:
    """Return a tensor with room for so many rows and tokens, and these at its beginning."""
    moved = used.new_zeros(rows, used.shape[1], tokens, used.shape[3])
    moved[: used.shape[0], :, : used.shape[2]] = used
    return moved
