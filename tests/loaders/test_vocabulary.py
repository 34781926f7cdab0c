"""Draft vocabularies: counted over supervised tokens of complete samples, in the usual form."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from hsstore.errors import InputError
from hsstore.loaders import draft_vocabulary, vocabulary

if TYPE_CHECKING:
    from hsstore.store import Store

TARGET = 50_000


def counted(store: Store, samples: list[int]) -> Counter[int]:
    counts: Counter[int] = Counter()
    for sample in samples:
        ids, mask = store.input_ids(sample), store.loss_mask(sample)
        counts.update(ids[mask == 1].tolist())
    return counts


def test_the_most_supervised_tokens_are_chosen_ties_by_id(many: Store) -> None:
    counts = counted(many, list(range(len(many))))
    expected = sorted(sorted(range(TARGET), key=lambda token: (-counts[token], token))[:300])

    d2t, t2d = draft_vocabulary(many, 300, TARGET)

    assert d2t.dtype == torch.int64
    assert t2d.dtype == torch.bool
    assert (torch.arange(300) + d2t).tolist() == expected
    assert torch.nonzero(t2d).flatten().tolist() == expected
    assert len(t2d) == TARGET


def test_windows_of_the_row_axis_make_no_difference(
    many: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = draft_vocabulary(many, 100, TARGET)
    monkeypatch.setattr(vocabulary, "WINDOW_ROWS", 7)

    assert torch.equal(draft_vocabulary(many, 100, TARGET).d2t, whole.d2t)


def test_pending_samples_and_other_splits_do_not_count(store: Store) -> None:
    train = [0, 1, 3, 5, 6]  # 2 is pending, 4 is of the split `test`
    counts = counted(store, train)
    assert counts

    t2d = draft_vocabulary(store, len(counts), TARGET, split="train").t2d

    assert set(np.flatnonzero(t2d).tolist()) == set(counts)


def test_a_target_without_these_tokens_is_refused(many: Store) -> None:
    with pytest.raises(InputError, match="but the target model has 1000"):
        draft_vocabulary(many, 10, 1000)
    with pytest.raises(InputError, match="a draft vocabulary of 20 tokens, of a target with 10"):
        draft_vocabulary(many, 20, 10)
