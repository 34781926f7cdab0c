"""Who reads: each is given the samples, and returns what reads one of them into new memory."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import safetensors.torch
import tensorstore
import torch
import zarr

from hsstore.decoders import run_all
from hsstore.loaders import Eagle3Dataset, read_states
from hsstore.store import Store

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    from tools.reading.samples import Samples

    ReadOne = Callable[[int], Any]
    """Reads a sample: a bfloat16 tensor, or an array of 16 bit values, (rows, slots, hidden)."""


def hsstore(samples: Samples) -> ReadOne:
    """Read as users do; the completion bit is looked up, crc32c are checked."""
    return partial(read_states, Store.open(samples.store))


def eagle3(samples: Samples) -> ReadOne:
    """Read a whole training sample: slots of a row side by side, token ids and loss mask too."""
    dataset = Eagle3Dataset(samples.store)

    def read(sample: int) -> torch.Tensor:
        item = dataset[sample]
        rows, hidden = item["final_state"].shape
        return item["aux_states"].as_strided(
            (rows, item["aux_states"].shape[1] // hidden + 1, hidden),
            (item["aux_states"].stride(0), hidden, 1),
        )

    return read


def limit(samples: Samples) -> ReadOne:
    """Decode the same chunks from memory, by the same threads, into the same warm buffers."""
    store = Store.open(samples.store)
    codec, layout = store.codec, store.layout
    encoded: list[list[npt.NDArray[np.uint8]]] = []
    for sample, length in enumerate(store.length.tolist()):
        chunks = store.payload.read_encoded(sample, layout.chunks_of(sample, length))
        encoded.append([np.frombuffer(chunk, np.uint8) for chunk in chunks])
    shape = (max(map(len, encoded)), *store.spec.geometry.chunk_shape)
    buffers = np.zeros(shape, store.bits)

    def read(sample: int) -> None:
        run_all(
            [partial(codec.decode, *each) for each in zip(encoded[sample], buffers, strict=False)]
        )

    return read


def pt(samples: Samples) -> ReadOne:
    """Load with torch.load."""
    return lambda sample: torch.load(samples.file(sample, ".pt"))["hidden_states"]


def pt_mmap(samples: Samples) -> ReadOne:
    """Load with torch.load(mmap=True), and copy the states out: the mapping alone has read nothing."""

    def read(sample: int) -> torch.Tensor:
        mapped: torch.Tensor = torch.load(samples.file(sample, ".pt"), mmap=True)["hidden_states"]
        return mapped.clone()

    return read


def safetensors_file(samples: Samples) -> ReadOne:
    """Load with safetensors, which maps too, and copy the states out."""

    def read(sample: int) -> torch.Tensor:
        return safetensors.torch.load_file(samples.file(sample, ".safetensors"))[
            "hidden_states"
        ].clone()

    return read


def zarr_python(samples: Samples) -> ReadOne:
    """Read the store with zarr-python, as bfloat16."""
    rows = _rows(samples)
    array = zarr.open_array(samples.states, mode="r")
    return lambda sample: array[rows[sample]]


def zarrs(samples: Samples) -> ReadOne:
    """Read the store with zarr-python on the pipeline of zarrs, as uint16."""
    rows = _rows(samples)
    with zarr.config.set(
        {"codec_pipeline.path": "zarrs.ZarrsCodecPipeline", "codec_pipeline.strict": True}
    ):
        array = zarr.open_array(samples.states_as_uint16, mode="r")
    return lambda sample: array[rows[sample]]


def tensorstore_array(samples: Samples) -> ReadOne:
    """Read the store with TensorStore, as bfloat16."""
    rows = _rows(samples)
    spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": f"{samples.states}/"}}
    array = tensorstore.open(spec, read=True).result()
    return lambda sample: array[rows[sample]].read().result()


def _rows(samples: Samples) -> list[slice]:
    """Return where each sample lies on the row axis."""
    store = Store.open(samples.store)
    starts = store.layout.row_start.tolist()
    return [slice(a, a + n) for a, n in zip(starts, store.length.tolist(), strict=True)]


CONTESTANTS: dict[str, Callable[[Samples], ReadOne]] = {
    "hsstore": hsstore,
    "eagle3": eagle3,
    "limit": limit,
    "pt": pt,
    "pt_mmap": pt_mmap,
    "safetensors": safetensors_file,
    "zarr_python": zarr_python,
    "zarrs": zarrs,
    "tensorstore": tensorstore_array,
}
