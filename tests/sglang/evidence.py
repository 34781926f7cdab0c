"""What a store must equal: what the server held, and what transformers computes."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from extraction.spool import RequestId
from tests.sglang.serving import PYTHON

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from hsstore.store import Store

RELATIVE_ERROR = 1e-5
"""Of a slot of a sample (2-norm), between two implementations in float32."""
ROWS_ERROR = 10
"""So many times larger may the error of a single row be."""
_ONE_THREAD = os.environ | {"OMP_NUM_THREADS": "1"}
"""Two threads that share a busy core wait for each other."""
_PROGRAM = Path(__file__).with_name("programs.py")


@dataclass(frozen=True, slots=True)
class Seen:
    """One request as one rank held it: raw bits where the dtype is bfloat16.

    Attributes
    ----------
    tokens : int (T,)
    states : (T, slots, hidden)
    pieces : int
        Prefill chunks that it came in.
    """

    tokens: npt.NDArray[Any]
    states: npt.NDArray[Any]
    pieces: int


def read_witness(directory: Path, hidden: int) -> dict[RequestId, dict[str, Seen]]:
    """Assemble what each rank held of each request; what was not computed whole is left out."""
    files: dict[tuple[RequestId, str], dict[int, tuple[int, Path]]] = defaultdict(dict)
    for path in directory.glob("*.npz"):
        name, start, rank, forward, _ = path.name.split(".")
        rid = RequestId.parse(name)
        if rid is not None:  # a chunk that was computed again: the later one counts
            before = files[rid, rank].get(int(start), (-1, path))
            files[rid, rank][int(start)] = max(before, (int(forward), path))
    found: dict[RequestId, dict[str, Seen]] = defaultdict(dict)
    for (rid, rank), chunks in files.items():
        seen = _assemble([chunks[start][1] for start in sorted(chunks)], hidden)
        if len(seen.tokens) == rid.rows:
            found[rid][rank] = seen
    return found


def _assemble(paths: Sequence[Path], hidden: int) -> Seen:
    tokens, states = [], []
    for path in paths:
        with np.load(path) as chunk:
            tokens.append(chunk["tokens"])
            slots = [chunk["aux"], chunk["final"]]
        states.append(np.concatenate(slots, axis=1).reshape(len(slots[0]), -1, hidden))
    return Seen(np.concatenate(tokens), np.concatenate(states), len(paths))


def check_store_equals_witness(store: Store, directory: Path, *, ranks: int = 1) -> dict[int, Seen]:
    """Every complete sample is, bit for bit, what all ranks held in one of its requests.

    Returns
    -------
    dict
        The request of each sample that the store holds.
    """
    witness = read_witness(directory, store.spec.model.hidden)
    found = {}
    for sample in np.flatnonzero(store.completion().complete).tolist():
        bits, tokens = store.payload.read(sample), store.input_ids(sample)
        requests = [held for rid, held in witness.items() if rid.sample == sample]
        assert requests, f"the server never computed sample {sample} whole"
        for held in requests:
            assert len(held) == ranks, f"sample {sample}: held by ranks {sorted(held)}"
            if all(_equal(one, bits) for one in held.values()):
                found[sample] = next(iter(held.values()))
                np.testing.assert_array_equal(found[sample].tokens, tokens, f"sample {sample}")
        assert sample in found, f"sample {sample} is not what any request of it held on all ranks"
    return found


def _equal(seen: Seen, bits: npt.NDArray[Any]) -> bool:
    return bool(
        seen.states.shape == bits.shape and np.array_equal(seen.states, bits_of(bits, seen))
    )


def bits_of(states: npt.NDArray[Any], like: Seen) -> npt.NDArray[Any]:
    """View raw bits as the witness has them."""
    return states.view(like.states.dtype)


def check_store_equals_transformers(
    store: Store, model_dir: Path, *, limit: float = RELATIVE_ERROR
) -> float:
    """Every row of every slot is what transformers computes in float32; returns the worst error.

    Parameters
    ----------
    limit : float
        For the relative error (2-norm) of a slot of a sample; a single row may have ten times that.
    """
    samples = np.flatnonzero(store.completion().complete).tolist()
    tokens = {str(sample): store.input_ids(sample) for sample in samples}
    expected = transformers_states(model_dir, store.spec.model.layers, tokens)
    worst = 0.0
    for sample in samples:
        right = expected[str(sample)]
        mine = store[sample].hidden_states.astype(np.float32)
        assert mine.shape == right.shape
        for axes, allowed in (((0, 2), limit), (2, limit * ROWS_ERROR)):
            error = np.linalg.norm(mine - right, axis=axes) / np.linalg.norm(right, axis=axes)
            assert error.max() < allowed, f"sample {sample}: {error} over the axes {axes}"
            worst = max(worst, float(error.max()))
    return worst


def transformers_states(
    model_dir: Path, layers: Sequence[int], tokens: dict[str, npt.NDArray[np.int32]]
) -> dict[str, npt.NDArray[np.float32]]:
    """Compute the states (T, slots, hidden) of each array of tokens, in float32."""
    with tempfile.TemporaryDirectory() as room:
        given, found = Path(room) / "tokens.npz", Path(room) / "states.npz"
        np.savez(given, **tokens)  # type: ignore[arg-type]  # numpy types only its options
        names = map(str, (PYTHON, _PROGRAM, model_dir, json.dumps(list(layers)), given, found))
        result = subprocess.run(
            [*names], check=False, capture_output=True, text=True, env=_ONE_THREAD
        )
        assert result.returncode == 0, result.stderr
        with np.load(found) as states:
            return dict(states)
