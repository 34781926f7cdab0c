"""The torch dataset and the EAGLE-3 alignment."""

from __future__ import annotations

import pickle
import subprocess
import sys
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st

from hsstore.errors import InputError
from hsstore.loaders import Eagle3Dataset, eagle3_collate
from hsstore.testing.stores import make_model, make_store, payload

if TYPE_CHECKING:
    from pathlib import Path

    from hsstore.loaders.eagle3 import Eagle3Batch, Eagle3Sample
    from hsstore.store import Store


def test_the_dataset_holds_complete_samples_only(store: Store) -> None:
    dataset = Eagle3Dataset(store.path)

    assert dataset.samples.tolist() == [0, 1, 3, 4, 5, 6]
    assert len(dataset) == 6


def test_a_split_selects_its_samples_and_an_unknown_one_is_refused(store: Store) -> None:
    assert Eagle3Dataset(store.path, "test").samples.tolist() == [4]
    assert Eagle3Dataset(store.path, "train").samples.tolist() == [0, 1, 3, 5, 6]
    with pytest.raises(InputError, match=r"no split 'dev'; there are \['train', 'test'\]"):
        Eagle3Dataset(store.path, "dev")


def test_an_item_is_the_stored_sample_bit_for_bit(store: Store) -> None:
    dataset = Eagle3Dataset(store.path)

    item = dataset[3]

    bits = payload(store, 4)
    assert item["input_ids"].dtype == item["loss_mask"].dtype == torch.int64
    assert item["input_ids"].tolist() == store.input_ids(4).tolist()
    assert item["loss_mask"].tolist() == store[4].loss_mask.tolist()
    assert item["aux_states"].dtype == item["final_state"].dtype == torch.bfloat16
    aux, final = (item[name].view(torch.uint16).numpy() for name in ("aux_states", "final_state"))
    np.testing.assert_array_equal(aux, bits[:, :2].reshape(18, -1))
    np.testing.assert_array_equal(final, bits[:, 2])


def test_the_states_of_an_item_share_one_buffer(store: Store) -> None:
    item = Eagle3Dataset(store.path)[3]

    aux, final = item["aux_states"], item["final_state"]

    assert aux.untyped_storage().data_ptr() == final.untyped_storage().data_ptr()


def test_a_dataset_survives_pickling_for_worker_processes(store: Store) -> None:
    dataset = Eagle3Dataset(store.path, "train")

    copy = pickle.loads(pickle.dumps(dataset))

    assert copy.samples.tolist() == dataset.samples.tolist()
    assert copy[1]["input_ids"].tolist() == dataset[1]["input_ids"].tolist()


def test_a_store_without_the_final_state_is_refused(tmp_path: Path) -> None:
    model = make_model().model_copy(update={"final": "none"})
    store = make_store(tmp_path / "store.zarr", [2], model=model)

    with pytest.raises(InputError, match="needs captured layers and the final state"):
        Eagle3Dataset(store.path)


@given(lengths=st.lists(st.integers(1, 9), min_size=1, max_size=4))
def test_every_row_of_a_batch_is_what_its_definition_says(lengths: list[int]) -> None:
    samples = [_sample(number, tokens) for number, tokens in enumerate(lengths)]

    batch = eagle3_collate(samples)

    rows = max(lengths) - 1
    assert batch["aux_states"].shape == (len(lengths), rows, 4)
    assert batch["target_states"].shape == (len(lengths), rows, 2)
    for number, sample in enumerate(samples):
        for t in range(rows):
            got = _row(batch, number, t)
            if t + 1 < lengths[number]:
                given_token = int(sample["input_ids"][t + 1])
                supervised = int(sample["loss_mask"][t + 1])
                assert got[:4] == (given_token, supervised, 1, t)
                assert got[4] == sample["aux_states"][t].tolist()
                assert got[5] == sample["final_state"][t + 1].tolist()
            else:
                assert got == (0, 0, 0, 0, [0.0] * 4, [0.0] * 2)


def _row(
    batch: Eagle3Batch, number: int, t: int
) -> tuple[int, int, int, int, list[float], list[float]]:
    return (
        int(batch["input_ids"][number, t]),
        int(batch["loss_mask"][number, t]),
        int(batch["attention_mask"][number, t]),
        int(batch["position_ids"][number, t]),
        batch["aux_states"][number, t].tolist(),
        batch["target_states"][number, t].tolist(),
    )


def _sample(number: int, tokens: int) -> Eagle3Sample:
    generator = torch.Generator().manual_seed(number)
    states = torch.randn(tokens, 3, 2, generator=generator).to(torch.bfloat16)
    return {
        "input_ids": torch.arange(tokens) + 100 * (number + 1),
        "loss_mask": torch.randint(0, 2, (tokens,), generator=generator),
        "aux_states": states[:, :-1].flatten(1),
        "final_state": states[:, -1],
    }


def test_without_torch_the_import_says_what_to_install() -> None:
    program = "import sys; sys.modules['torch'] = None; import hsstore.loaders"

    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )

    assert "hsstore.loaders needs torch, which is not installed" in result.stderr
