"""EAGLE-3 batches are what their definition says, token by token, however they are made."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from hypothesis import given, strategies as st

from hsstore.errors import InputError
from hsstore.loaders import Eagle3Dataset, Eagle3Stream, eagle3_collate
from hsstore.testing.stores import fill_store, make_model, make_store
from tests.loaders.batches import assert_equal, brute_force, lines_of, samples_of

if TYPE_CHECKING:
    from pathlib import Path

    from hsstore.loaders import Eagle3Sample
    from hsstore.store import Store


@given(
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=4),
    max_length=st.none() | st.integers(2, 9),
    spare=st.none() | st.integers(0, 5),
)
def test_every_row_of_a_batch_is_what_its_definition_says(
    lengths: list[int], max_length: int | None, spare: int | None
) -> None:
    samples = [_sample(number, tokens) for number, tokens in enumerate(lengths)]
    rows = sum(min(tokens, max_length or tokens) - 1 for tokens in lengths)
    pack_rows = None if spare is None else max(rows + spare, 1)

    batch = eagle3_collate(samples, max_length=max_length, pack_rows=pack_rows)

    assert lines_of(batch) == brute_force(samples, max_length, pack_rows)
    assert batch["samples"].tolist() == list(range(len(lengths)))


def _sample(number: int, tokens: int) -> Eagle3Sample:
    generator = torch.Generator().manual_seed(number)
    states = torch.randn(tokens, 3, 2, generator=generator).to(torch.bfloat16)
    return {
        "sample": number,
        "input_ids": torch.arange(tokens) + 100 * (number + 1),
        "loss_mask": torch.randint(0, 2, (tokens,), generator=generator),
        "aux_states": states[:, :-1].flatten(1),
        "final_state": states[:, -1],
    }


def test_the_example_of_the_docstring_is_true() -> None:
    sample = _sample(0, 5) | {"loss_mask": torch.tensor([0, 0, 1, 1, 1])}

    batch = eagle3_collate([sample, _sample(1, 3)], pack_rows=8)

    assert batch["input_ids"].tolist() == [[101, 102, 103, 104, 201, 202, 0, 0]]
    assert batch["loss_mask"][0, :4].tolist() == [0, 1, 1, 1]
    assert batch["position_ids"].tolist() == [[0, 1, 2, 3, 0, 1, 0, 0]]
    assert batch["document_ids"].tolist() == [[0, 0, 0, 0, 1, 1, -1, -1]]
    assert torch.equal(batch["aux_states"][0, :4], sample["aux_states"][:4])
    assert torch.equal(batch["target_states"][0, :4], sample["final_state"][1:])


def test_more_than_fits_is_not_packed() -> None:
    with pytest.raises(ValueError, match="6 rows do not fit into a line of 5"):
        eagle3_collate([_sample(0, 4), _sample(1, 4)], pack_rows=5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_length": 1}, "max_length is 1; it must be at least 2"),
        ({"max_length": 0}, "max_length is 0; "),
        ({"dtype": torch.int64}, "dtype is torch.int64; states can be torch's bfloat16, "),
    ],
)
def test_what_no_batch_can_be_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        eagle3_collate([_sample(0, 4)], **options)


def test_no_samples_make_no_batch() -> None:
    with pytest.raises(ValueError, match="no sample"):
        eagle3_collate([])


@pytest.fixture(scope="module", params=[16, 2048], ids=["all slots a chunk", "one slot a chunk"])
def full(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Store:
    path: Path = tmp_path_factory.mktemp("batches") / "store.zarr"
    store = make_store(path, [9, 1, 18, 2, 21], model=make_model(hidden=request.param))
    fill_store(store)
    return store


@pytest.mark.parametrize(
    "options",
    [
        {"batch_size": 2},
        {"batch_size": 3, "max_length": 7},
        {"pack_rows": 40},
        {"pack_rows": 19, "max_length": 20},
        {"batch_size": 4, "layers": [3]},
        {"batch_size": 4, "layers": [3, 0], "dtype": torch.float32},
        {"pack_rows": 25, "dtype": torch.float16},
    ],
)
def test_a_stream_reads_the_batches_that_collation_makes(
    full: Store, options: dict[str, Any]
) -> None:
    stream = Eagle3Stream(full.path, **options)
    dataset = Eagle3Dataset(full.path, layers=options.get("layers"))
    names = ("max_length", "pack_rows", "dtype")
    collation = {name: options[name] for name in names if name in options}
    if "pack_rows" in options:  # a longer sample is cut to what a line takes
        collation["max_length"] = min(options.get("max_length", 999), options["pack_rows"] + 1)

    batches = list(stream)

    assert len(batches) == len(stream)
    for batch in batches:
        items = [dataset[number] for number in batch["samples"].tolist()]
        assert_equal(batch, eagle3_collate(items, **collation))


def test_padding_is_zero_though_memory_is_used_again(full: Store) -> None:
    for epoch in range(3):
        stream = Eagle3Stream(full.path, pack_rows=45, seed=epoch)
        for batch in stream:
            items = samples_of(full, batch["samples"].tolist())
            assert lines_of(batch) == brute_force(items, None, 45)
