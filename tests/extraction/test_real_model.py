"""The numbers, on a real model and real conversations: SmolLM2-135M and MT-bench."""

from __future__ import annotations

import json
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from hsstore.store import Store
from tests.extraction.gate import gated
from tests.extraction.processes import Extraction, Server, remove_spool

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

ROOT = Path(__file__).parents[2]
MODEL = ROOT / "demo/model"
CHATS = ROOT / "tests/data/mtbench_chats.jsonl"
LAYERS = (1, 14, 26)
SAMPLES, MAX_TOKENS = 20, 64
RELATIVE_ERROR = 0.006
"""Of a slot's states (2-norm) against exact ones. Rounding to bfloat16 (8 bits of mantissa) is wrong
by up to 2**-9 = 0.2 %; the rest is room for float32 sums in another order, 1e-5 here. A wrong layer,
norm or position is wrong by more than 10 %."""

pytestmark = [
    pytest.mark.model,
    pytest.mark.skipif(not MODEL.exists(), reason="no demo/model: run tools/convert_smollm2.py"),
    pytest.mark.skipif(not CHATS.exists(), reason="no conversations"),
]


@pytest.fixture(scope="module")
def real_store() -> Iterator[Store]:
    """Extract 20 conversations with at least 16 requests in flight."""
    with _served() as (server, directory), gated(server, SAMPLES, 0) as gate:
        path = directory / "store.zarr"
        run = Extraction(
            path,
            gate,
            *("--data", CHATS, "--model", MODEL),
            *("--limit", str(SAMPLES), "--max-tokens", str(MAX_TOKENS), "--min-loss-tokens", "0"),
        )
        status = run.wait_for(lambda status: status.in_flight >= 16)
        gate.open()
        ended = run.wait()
        assert ended.code == 0, ended.log
        assert status.in_flight >= 16
        yield Store.open(path)


@contextmanager
def _served() -> Iterator[tuple[Server, Path]]:
    with tempfile.TemporaryDirectory(prefix="hsstore-test-", dir="/dev/shm") as path:
        # The compute dtype is said: by default it depends on the processor.
        layers = ",".join(map(str, LAYERS))
        dtypes = ("--dtype", "bfloat16", "--compute-dtype", "float32")
        server = Server(MODEL, Path(path) / "server", "--layers", layers, *dtypes)
        try:
            yield server.start().wait(), Path(path)
        finally:
            server.kill()
            remove_spool(server)


def test_the_store_holds_the_states_of_the_models_own_forward_bit_for_bit(
    real_store: Store,
) -> None:
    import torch  # noqa: PLC0415  # takes seconds
    import transformers  # noqa: PLC0415

    torch.set_num_threads(1)  # as the server: sums are made in the same order
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
    for sample in range(SAMPLES):
        ids = torch.from_numpy(real_store.input_ids(sample).astype(np.int64))[None]
        with torch.inference_mode():
            output = model.model(input_ids=ids, use_cache=False, output_hidden_states=True)
        # hidden_states[0] is the embedding: the state after 0-based layer k is [k + 1], except
        # after the last layer, where the final norm has been applied.
        states = [output.hidden_states[layer + 1][0] for layer in LAYERS]
        expected = torch.stack([*states, output.hidden_states[-1][0]], dim=1)
        assert torch.equal(output.hidden_states[-1], output.last_hidden_state)
        bits = expected.to(torch.bfloat16).view(torch.int16).numpy().view(np.uint16)
        np.testing.assert_array_equal(real_store.payload.read(sample), bits, f"sample {sample}")


def test_the_store_holds_the_states_of_an_independent_implementation(real_store: Store) -> None:
    weights = {
        name: w.astype(np.float32) for name, w in load_file(MODEL / "model.safetensors").items()
    }
    config = json.loads((MODEL / "config.json").read_text())

    for sample in (0, 7, 19):
        stored = real_store[sample].hidden_states.astype(np.float32)
        expected = _forward(weights, config, real_store.input_ids(sample))
        assert stored.shape == expected.shape
        error = np.linalg.norm(stored - expected, axis=(0, 2))
        error /= np.linalg.norm(expected, axis=(0, 2))
        assert error.max() < RELATIVE_ERROR, error


def test_what_is_stored_is_the_conversation(real_store: Store) -> None:
    from transformers import AutoTokenizer  # noqa: PLC0415  # takes seconds

    tokenizer: Any = AutoTokenizer.from_pretrained(MODEL)
    record = json.loads(CHATS.read_text().splitlines()[3])

    text = tokenizer.decode(real_store.input_ids(3))

    assert real_store.sample_id(3) == record["id"]
    assert record["messages"][0]["content"][:100] in text


def _forward(
    weights: dict[str, npt.NDArray[np.float32]], config: dict[str, Any], ids: npt.NDArray[np.int32]
) -> npt.NDArray[np.float32]:
    """Run Llama in numpy, float32; return the states after `LAYERS` and the normed final one."""
    heads, groups = config["num_attention_heads"], config["num_key_value_heads"]
    hidden = weights["model.embed_tokens.weight"][ids]
    size = hidden.shape[1] // heads
    theta = config.get("rope_theta") or config["rope_parameters"]["rope_theta"]
    angle = np.arange(len(ids))[:, None] / theta ** (np.arange(0, size, 2) / size)

    def norm(x: npt.NDArray[np.float32], name: str) -> npt.NDArray[np.float32]:
        rms = np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + config["rms_norm_eps"])
        return np.asarray(x / rms * weights[name], np.float32)

    def rotate(x: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        a, b = np.split(x, 2, axis=-1)
        cos, sin = np.cos(angle)[:, None], np.sin(angle)[:, None]
        return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)

    def project(x: npt.NDArray[np.float32], name: str, count: int) -> npt.NDArray[np.float32]:
        return (x @ weights[name].T).reshape(len(ids), count, -1)

    captured = []
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        attention, mlp = prefix + "self_attn.", prefix + "mlp."
        x = norm(hidden, prefix + "input_layernorm.weight")
        q = rotate(project(x, attention + "q_proj.weight", heads))
        k = rotate(project(x, attention + "k_proj.weight", groups)).repeat(heads // groups, axis=1)
        v = project(x, attention + "v_proj.weight", groups).repeat(heads // groups, axis=1)
        score = np.einsum("qhd,khd->hqk", q, k) / np.sqrt(size)
        score = np.where(np.tri(len(ids), dtype=bool), score, -np.inf)
        score = np.exp(score - score.max(axis=-1, keepdims=True))
        mixed = np.einsum("hqk,khd->qhd", score / score.sum(axis=-1, keepdims=True), v)
        hidden = hidden + mixed.reshape(len(ids), -1) @ weights[attention + "o_proj.weight"].T
        x = norm(hidden, prefix + "post_attention_layernorm.weight")
        gate = x @ weights[mlp + "gate_proj.weight"].T
        up = x @ weights[mlp + "up_proj.weight"].T
        hidden = hidden + (gate / (1 + np.exp(-gate)) * up) @ weights[mlp + "down_proj.weight"].T
        if layer in LAYERS:
            captured.append(hidden)
    return np.stack([*captured, norm(hidden, "model.norm.weight")], axis=1).astype(np.float32)
