"""A store's plan from the files' own tokens, where there are no training data to plan it from."""

from __future__ import annotations

from typing import TYPE_CHECKING

import xxhash

from hsstore.dataset import TokenizedDataset, TokenizedSample
from hsstore.errors import InputError
from hsstore.importing.files import SUFFIXES, NotTakenError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hsstore.importing.files import Source


def dataset_of(source: Source) -> TokenizedDataset:
    """Collect the samples of all files that can be read; the same tokens count once.

    Ids are the files' own, or their names without the format's suffix.

    Raises
    ------
    InputError
        A file does not say which tokens are supervised; or none can be read.
    """
    return TokenizedDataset.from_samples(_samples(source))


def _samples(source: Source) -> Iterator[TokenizedSample]:
    seen_tokens: set[int] = set()
    seen_ids: set[str] = set()
    for file in source.files:
        try:
            tokens = source.tokens(file)
        except NotTakenError:  # said when the states are wanted
            continue
        if tokens.loss_mask is None:
            raise InputError(
                f"{source.root / file} does not say which tokens are supervised: give the training data, --data"
            )
        key = xxhash.xxh3_64_intdigest(tokens.input_ids.tobytes())
        if key in seen_tokens:
            continue
        sample_id = tokens.sample_id or _name(file, SUFFIXES[source.form.name])
        if sample_id in seen_ids:
            sample_id = f"{sample_id}@{file}"
        seen_tokens.add(key)
        seen_ids.add(sample_id)
        yield TokenizedSample(sample_id, tokens.input_ids, tokens.loss_mask)


def _name(file: str, suffixes: tuple[str, ...]) -> str:
    return next(file.removesuffix(one) for one in suffixes if file.endswith(one))
