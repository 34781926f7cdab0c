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
    files: dict[tuple[RequestId, str], list[tuple[int, int, Path]]] = defaultdict(list)
    for path in directory.glob("*.npz"):
        name, start, rank, forward, _ = path.name.split(".")
        rid = RequestId.parse(name)
        if rid is not None:
            files[rid, rank].append((int(forward), int(start), path))
    found: dict[RequestId, dict[str, Seen]] = defaultdict(dict)
    for (rid, rank), chunks in files.items():
        seen = _assemble(rid.rows, sorted(chunks), hidden)
        if seen is not None:
            found[rid][rank] = seen
    return found


def _assemble(rows: int, chunks: Sequence[tuple[int, int, Path]], hidden: int) -> Seen | None:
    """Lay each chunk over those before it until all rows are there: nobody wants later ones.

    A request that is retracted is computed again, in other chunks, and with what it has generated.
    """
    tokens = np.full(rows, -1)
    states = np.empty(0)
    for pieces, (_, start, path) in enumerate(chunks, 1):
        new_tokens, new_states = _load(path, hidden)
        if pieces == 1:
            states = np.empty((rows, *new_states.shape[1:]), new_states.dtype)
        here = slice(start, start + len(new_tokens))
        if here.stop > rows:
            return None
        tokens[here], states[here] = new_tokens, new_states
        if (tokens >= 0).all():
            return Seen(tokens, states, pieces)
    return None


def _load(path: Path, hidden: int) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Return tokens (rows,) and states (rows, slots, hidden) of a chunk."""
    with np.load(path) as chunk:
        states = np.concatenate([chunk["aux"], chunk["final"]], axis=1)
        return chunk["tokens"], states.reshape(len(states), -1, hidden)


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
