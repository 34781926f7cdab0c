"""Token ids and loss masks of rendered text.

The whole text is tokenised once and tokens are matched to character spans. A tokenizer without
offsets (Kimi-K2's is tiktoken in Python) is asked again for the pieces between the spans' ends; only
if their ids add up to those of the whole is the mask known.
"""

from __future__ import annotations

import json
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
import xxhash

from extraction.dataset.options import UNPROVEN_MASK, DroppedRecordError
from hsstore.errors import InputError

if TYPE_CHECKING:
    from pathlib import Path

Span = tuple[int, int]
"""Characters [start, end) of a rendered text that are supervised."""

Encoded = tuple[npt.NDArray[np.int32], npt.NDArray[np.uint8]]
"""input_ids and loss_mask, both (T,)."""

TOKENIZER_FILES: Final = (
    "tokenizer*.json",
    "tokenizer.model*",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.*",
    "merges.txt",
    "*.tiktoken",
    "tiktoken.model",
    "chat_template.*",
    "additional_chat_templates/*",
    "tokenization_*.py",
    "encoding_*.py",
)
"""All that decides ids and rendered text, as patterns below a model directory."""


def tokenizer_hash(directory: Path) -> str:
    """Hash the tokenizer and its chat templates: 32 hex digits of XXH3-128.

    Raises
    ------
    InputError
        There is no tokenizer in the directory.
    """
    paths = {path for pattern in TOKENIZER_FILES for path in directory.glob(pattern)}
    if not paths:
        raise InputError(f"{directory}: no tokenizer in it")
    state = xxhash.xxh3_128()
    for path in sorted(path for path in paths if path.is_file()):
        content = path.read_bytes()
        state.update(f"{path.relative_to(directory)}\0{len(content)}\0".encode())
        state.update(content)
    return state.hexdigest()


class Encoder:
    """A model's tokenizer.

    Attributes
    ----------
    tokenizer
        The transformers tokenizer itself.
    vocab_size
        Ids are below it: the tokenizer's, or the model's where that is larger.
    end_ids
        The tokens that end a generation.
    """

    def __init__(self, directory: Path, *, trust_remote_code: bool = False) -> None:
        self.tokenizer = _load(directory, trust_remote_code=trust_remote_code)
        self.vocab_size = max(len(self.tokenizer), _model_vocab_size(directory))
        self.end_ids = _end_ids(directory, self.tokenizer)

    def encode(self, text: str, spans: list[Span]) -> Encoded:
        """Tokenise a rendered conversation, in which `spans` (ascending) are supervised.

        A token is supervised if it begins inside a span and ends inside, or in white space behind
        it. One that merges the prompt's last character with the turn's first is not: it is no
        answer to the prompt. Where the template leaves the end of a turn to the next header (GLM
        ends with ``<|user|>``), that end-of-sequence token is supervised as well.

        Raises
        ------
        DroppedRecordError
            The tokenizer has no offsets, and the pieces do not add up to the whole.
        """
        if self.tokenizer.is_fast:
            ids, mask = self._encode_by_offsets(text, spans)
        else:
            ids, mask = self._encode_by_pieces(text, spans)
        return ids, self._with_end_tokens(ids, mask)

    def encode_text(self, text: str) -> Encoded:
        """Tokenise plain text, with the special tokens that the tokenizer adds by itself.

        All tokens of the text are supervised, the added ones are not. Text that brings its own
        beginning-of-sequence token does not get a second one.
        """
        bare = self._ids(text, add_special_tokens=False)
        bos = self.tokenizer.bos_token_id
        if bos is not None and bare[:1] == [bos]:
            return _as_arrays(bare, np.ones(len(bare)))
        whole = self._ids(text, add_special_tokens=True)
        for start in range(len(whole) - len(bare) + 1):
            if whole[start : start + len(bare)] == bare:
                mask = np.zeros(len(whole))
                mask[start : start + len(bare)] = 1
                return _as_arrays(whole, mask)
        raise DroppedRecordError(UNPROVEN_MASK, "the special tokens change how the text is split")

    def encode_prompt(self, text: str) -> list[int]:
        """Tokenise a rendered conversation as `encode` does, for a server to continue."""
        return self._ids(text, add_special_tokens=False)

    def _ids(self, text: str, *, add_special_tokens: bool) -> list[int]:
        encoding = self.tokenizer(text, add_special_tokens=add_special_tokens, verbose=False)
        return list(encoding["input_ids"])

    def _encode_by_offsets(self, text: str, spans: list[Span]) -> Encoded:
        # A rendered chat has its own special tokens; adding them again would double the BOS.
        encoding = self.tokenizer(
            text, add_special_tokens=False, return_offsets_mapping=True, verbose=False
        )
        start, end = np.array(encoding["offset_mapping"], dtype=np.int64).reshape(-1, 2).T
        # Some tokenizers trim the space off " word"'s offsets; it still belongs to that token.
        reached = np.maximum.accumulate(np.concatenate([[0], end]))[:-1]
        begin = np.minimum(start, reached)
        mask = np.zeros(len(end))
        for first, last in spans:
            behind = last + len(text[last:]) - len(text[last:].lstrip())
            mask[(begin >= first) & (begin < last) & (begin < end) & (end <= behind)] = 1
        return _as_arrays(encoding["input_ids"], mask)

    def _encode_by_pieces(self, text: str, spans: list[Span]) -> Encoded:
        cuts = [0, *(cut for span in spans for cut in span), len(text)]
        pieces = [
            self._ids(text[begin:end], add_special_tokens=False) if begin < end else []
            for begin, end in pairwise(cuts)
        ]
        ids = self._ids(text, add_special_tokens=False)
        if ids != [token for piece in pieces for token in piece]:
            raise DroppedRecordError(
                UNPROVEN_MASK, "the tokenizer has no offsets, and a token crosses a turn's boundary"
            )
        # Pieces alternate between unsupervised and supervised.
        return _as_arrays(ids, np.repeat(np.arange(len(pieces)) % 2, [len(p) for p in pieces]))

    def _with_end_tokens(
        self, ids: npt.NDArray[np.int32], mask: npt.NDArray[np.uint8]
    ) -> npt.NDArray[np.uint8]:
        is_end = np.isin(ids, list(self.end_ids))
        after = np.flatnonzero((mask[:-1] == 1) & (mask[1:] == 0) & ~is_end[:-1] & is_end[1:])
        mask[after + 1] = 1
        return mask


def _as_arrays(ids: list[int], mask: npt.NDArray[Any]) -> Encoded:
    return np.array(ids, dtype=np.int32), mask.astype(np.uint8)


def _load(directory: Path, *, trust_remote_code: bool) -> Any:  # noqa: ANN401 - transformers' own
    if not directory.is_dir():
        raise InputError(f"{directory}: not a directory; a local tokenizer directory is expected")
    # Late: it imports torch where that is installed, and most runs need no tokenizer.
    from transformers import AutoTokenizer  # noqa: PLC0415

    try:
        return AutoTokenizer.from_pretrained(
            directory, local_files_only=True, trust_remote_code=trust_remote_code
        )
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise InputError(f"{directory}: the tokenizer cannot be loaded: {error}") from error


def _read_config(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    config: dict[str, Any] = json.loads(path.read_bytes())
    return config


def _model_vocab_size(directory: Path) -> int:
    config = _read_config(directory / "config.json")
    return int(config.get("text_config", config).get("vocab_size", 0))


def _end_ids(directory: Path, tokenizer: Any) -> set[int]:  # noqa: ANN401 - transformers' own
    """List the tokens that end a generation."""
    configured = _read_config(directory / "generation_config.json").get("eos_token_id", [])
    ids = configured if isinstance(configured, list) else [configured]
    return {token for token in (*ids, tokenizer.eos_token_id) if token is not None}
