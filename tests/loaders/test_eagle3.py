"""The torch dataset and the EAGLE-3 alignment."""

from __future__ import annotations

import pickle
import subprocess
import sys
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from hsstore.errors import InputError
from hsstore.loaders import Eagle3Dataset
from hsstore.testing.stores import make_model, make_store, payload

if TYPE_CHECKING:
    from pathlib import Path

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


def test_only_the_layers_that_were_chosen_are_read_in_that_order(store: Store) -> None:
    item = Eagle3Dataset(store.path, layers=[3, 0])[3]

    bits = payload(store, 4)
    aux = item["aux_states"].view(torch.uint16).numpy()
    np.testing.assert_array_equal(aux, bits[:, [1, 0]].reshape(18, -1))
    with pytest.raises(InputError, match=r"layers \[1\] are not in the store; it has \[0, 3\]"):
        Eagle3Dataset(store.path, layers=[0, 1])


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


def test_without_torch_the_import_says_what_to_install() -> None:
    program = "import sys; sys.modules['torch'] = None; import hsstore.loaders"

    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )

    assert "hsstore.loaders needs torch, which is not installed" in result.stderr
