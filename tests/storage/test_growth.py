"""What must not grow with a store: what a reader of one sample reads, what a dataset holds in memory."""

from __future__ import annotations

import tempfile
from typing import TYPE_CHECKING

import numpy as np
import pytest
import zarr

from hsstore import dataset as dataset_module, index as index_module
from hsstore.errors import CorruptStoreError, InputError, OutputError
from hsstore.store import Store
from hsstore.testing.finite import make_mixed_store
from hsstore.testing.stores import fill_store, make_dataset, make_store

if TYPE_CHECKING:
    from pathlib import Path

LENGTHS = [3, 9, 40, 1, 16, 5, 7, 7, 2, 30]


def test_reading_a_sample_does_not_plan_the_whole_store(directory: Path) -> None:
    fill_store(make_store(directory / "s.zarr", LENGTHS))
    store = Store.open(directory / "s.zarr")

    assert len(store[7].hidden_states) == 7

    assert {"layout", "length"}.isdisjoint(vars(store))


def test_the_index_of_single_samples_agrees_with_the_layout(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index_module, "PAGE_SAMPLES", 4)
    store = make_store(directory / "s.zarr", LENGTHS)

    for sample, tokens in enumerate(LENGTHS):
        assert store.index.row_start[sample] == store.layout.row_start[sample]
        assert store.index.length[sample] == tokens
        found = list(store.index.chunks_of(sample, tokens))
        assert found == list(store.layout.chunks_of(sample, tokens))


@pytest.mark.parametrize(
    "where", [slice(None), slice(3, 9), slice(5, 6), slice(12, 40), slice(4, 4)]
)
def test_completion_arrays_are_read_as_zarr_reads_them(directory: Path, where: slice) -> None:
    store = make_mixed_store(directory / "s.zarr")

    completion = store.completion(where)

    for name in ("complete", "failed", "digest"):
        found, expected = getattr(completion, name), zarr.open_array(store.path / name, mode="r")
        np.testing.assert_array_equal(found, expected[where])
        assert found.dtype == expected.dtype


def test_a_completion_file_that_was_cut_is_corrupt(directory: Path) -> None:
    store = make_mixed_store(directory / "s.zarr")
    path = store.path / "digest" / "c.1"
    path.write_bytes(path.read_bytes()[:-8])

    with pytest.raises(CorruptStoreError, match=r"array digest: c\.1 has 44 bytes, expected 52"):
        store.completion()


def test_the_tokens_of_a_block_are_those_of_its_samples(directory: Path) -> None:
    store = make_store(directory / "s.zarr", LENGTHS)

    for index in range(store.layout.blocks):
        samples = list(store.layout.block(index).samples)[::2]
        tokens = store.input_ids_of(samples)
        assert list(tokens) == samples
        for sample in samples:
            np.testing.assert_array_equal(tokens[sample], store.input_ids(sample))


def test_a_dataset_that_goes_to_a_file_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    small = make_dataset(LENGTHS)
    monkeypatch.setattr(dataset_module, "SPILL_BYTES", 50)
    monkeypatch.setattr(dataset_module, "IDS_AT_ONCE", 3)

    large = make_dataset(LENGTHS)

    assert isinstance(large.input_ids, np.memmap)
    assert large.fingerprint() == small.fingerprint()
    np.testing.assert_array_equal(large.metadata, small.metadata)
    np.testing.assert_array_equal(large.metadata_end, small.metadata_end)


def test_a_dataset_without_room_for_its_tokens_says_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dataset_module, "SPILL_BYTES", 50)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))

    with pytest.raises(OutputError, match=r"cannot write the data's tokens to .*gone.*TMPDIR"):
        make_dataset(LENGTHS)


def test_a_second_sample_of_the_same_id_is_refused_by_it() -> None:
    one, other = dataset_module.TokenizedSample, np.ones(2, np.int32)
    samples = [one(name, other, other.astype(np.uint8)) for name in ("a", "ä", "b", "ä")]

    with pytest.raises(InputError, match="sample id 'ä': duplicate"):
        dataset_module.TokenizedDataset.from_samples(samples)
