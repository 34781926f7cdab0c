"""The data set beside speculators' states: what `datasets.Dataset.save_to_disk` would leave.

Written by hand, so that the library `datasets` is not needed. It is an Arrow stream, and two JSON files;
`state.json` says that rows are given as torch tensors, without which the trainer breaks.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from hsstore.files import PARTIAL_SUFFIX, publish, write_durably
from hsstore.formats.names import SampleNames

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import numpy as np
    import numpy.typing as npt

    from hsstore.store import Store

ROWS_A_BATCH = 512
DATA = "data-00000-of-00001.arrow"
STATE = "state.json"
SCHEMA = pa.schema(
    [
        ("input_ids", pa.list_(pa.int64())),
        ("loss_mask", pa.list_(pa.int64())),
        ("seq_len", pa.int64()),
        ("sample_id", pa.string()),
    ]
)


def write_data_set(
    directory: Path, store: Store, samples: npt.NDArray[np.int64], fingerprint: str
) -> None:
    """Write tokens and masks of samples, row by row.

    Parameters
    ----------
    fingerprint : str
        Names the content, for whoever caches what was made from it.

    Raises
    ------
    OSError
    """
    partial = directory / f".{DATA}{PARTIAL_SUFFIX}"
    with partial.open("wb") as file:
        with pa.ipc.new_stream(file, SCHEMA) as stream:
            for batch in _batches(store, samples):
                stream.write_batch(batch)
        file.flush()
        os.fsync(file.fileno())
    publish(partial, directory / DATA)
    write_durably(directory / "dataset_info.json", _json(_info()))
    write_durably(directory / STATE, _json(_state(fingerprint)))


def _batches(store: Store, samples: npt.NDArray[np.int64]) -> Iterator[pa.RecordBatch]:
    name = SampleNames(store)
    for first in range(0, len(samples), ROWS_A_BATCH):
        part = samples[first : first + ROWS_A_BATCH].tolist()
        ids = [store.input_ids(sample) for sample in part]
        columns = [
            pa.array(ids, SCHEMA.field("input_ids").type),
            pa.array([store.loss_mask(sample) for sample in part], SCHEMA.field("loss_mask").type),
            pa.array([len(one) for one in ids], pa.int64()),
            pa.array([name(sample) for sample in part], pa.string()),
        ]
        yield pa.record_batch(columns, schema=SCHEMA)


def _info() -> dict[str, Any]:
    number = {"dtype": "int64", "_type": "Value"}
    numbers = {"feature": number, "_type": "List"}
    return {
        "citation": "",
        "description": "",
        "features": {
            "input_ids": numbers,
            "loss_mask": numbers,
            "seq_len": number,
            "sample_id": {"dtype": "string", "_type": "Value"},
        },
        "homepage": "",
        "license": "",
    }


def _state(fingerprint: str) -> dict[str, Any]:
    return {
        "_data_files": [{"filename": DATA}],
        "_fingerprint": fingerprint,
        "_format_columns": None,
        "_format_kwargs": {},
        "_format_type": "torch",
        "_output_all_columns": False,
        "_split": None,
    }


def _json(value: dict[str, Any]) -> bytes:
    return json.dumps(value, indent=2).encode()
