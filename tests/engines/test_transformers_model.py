"""What is captured, against transformers itself."""

from __future__ import annotations

import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
import transformers

from extraction.engines.capture_hash import capture_hash
from extraction.engines.engine import resolve_layers
from extraction.engines.transformers_model import TransformersEngine, fastest_compute_dtype
from hsstore.errors import InputError

if TYPE_CHECKING:
    import numpy.typing as npt

LAYERS = (0, 2, 5)
IDS = np.random.default_rng(0).integers(0, 512, 100).astype(np.int32)


def _capture(engine: TransformersEngine) -> npt.NDArray[Any]:
    return engine.capture(IDS, predict=False, progress=lambda: None).hidden


def _reference(path: Path, dtype: torch.dtype) -> Any:
    model = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=dtype)
    ids = torch.from_numpy(IDS.astype(np.int64))[None]
    with torch.inference_mode():
        return model, model(ids, output_hidden_states=True)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_slot_k_is_the_output_of_decoder_layer_k_bit_for_bit(tiny_llama: Path, dtype: str) -> None:
    engine = TransformersEngine(tiny_llama, layers=(0, 2, 4), dtype=dtype, compute_dtype=dtype)
    _, reference = _reference(tiny_llama, getattr(torch, dtype))

    captured = _capture(engine)

    assert captured.shape == (100, 4, 64)
    # hidden_states[0] is the embedding, so [k + 1] is the state after 0-based layer k.
    for slot, layer in enumerate((0, 2, 4)):
        expected = reference.hidden_states[layer + 1][0]
        bits = expected.view(torch.int16 if expected.itemsize == 2 else torch.int32).numpy()
        assert np.array_equal(captured[:, slot].view(bits.dtype), bits)


def test_the_final_state_is_the_output_of_the_norm_and_the_last_layer_comes_before_it(
    tiny_llama: Path,
) -> None:
    engine = TransformersEngine(tiny_llama, layers=(5,), dtype="float32")
    model, reference = _reference(tiny_llama, torch.float32)

    last, final = torch.from_numpy(_capture(engine)).unbind(1)

    with torch.inference_mode():
        assert torch.equal(model.model.norm(last[None])[0], final)
        assert torch.equal(model.lm_head(final), reference.logits[0])
    assert torch.equal(final, reference.hidden_states[-1][0])
    assert not torch.equal(last, final)


def test_states_do_not_depend_on_what_ran_before(tiny_llama: Path) -> None:
    engine = TransformersEngine(tiny_llama, layers=LAYERS)
    first = _capture(engine)

    engine.capture(IDS[::-1].copy(), predict=True, progress=lambda: None)

    assert np.array_equal(_capture(engine), first)


def test_forwards_at_once_do_not_mix(tiny_llama: Path) -> None:
    engine = TransformersEngine(tiny_llama, layers=LAYERS)
    inputs = [np.roll(IDS, shift) for shift in range(16)]
    alone = [engine.capture(ids, predict=False, progress=lambda: None).hidden for ids in inputs]

    with ThreadPoolExecutor(4) as pool:
        futures = [
            pool.submit(engine.capture, ids, predict=False, progress=lambda: None) for ids in inputs
        ]
        together = [future.result().hidden for future in futures]

    assert all(np.array_equal(a, b) for a, b in zip(alone, together, strict=True))


def test_computing_in_float32_rounds_the_exact_states(tiny_llama: Path) -> None:
    engine = TransformersEngine(tiny_llama, layers=(0, 2, 4), compute_dtype="float32")
    _, reference = _reference(tiny_llama, torch.float32)

    captured = _capture(engine)

    assert engine.description.dtype == "bfloat16"
    assert engine.description.flags["compute_dtype"] == "float32"
    expected = reference.hidden_states[3][0].to(torch.bfloat16).view(torch.int16).numpy()
    assert np.array_equal(captured[:, 1].view(np.int16), expected)


def test_the_next_token_is_the_most_likely_one(tiny_llama: Path) -> None:
    engine = TransformersEngine(tiny_llama, layers=LAYERS, dtype="float32")
    _, reference = _reference(tiny_llama, torch.float32)

    states = engine.capture(IDS, predict=True, progress=lambda: None)

    assert states.next_token == int(reference.logits[0, -1].argmax())


def test_progress_is_told_at_every_layer(tiny_llama: Path) -> None:
    engine = TransformersEngine(tiny_llama, layers=(1,))
    calls: list[None] = []

    engine.capture(IDS, predict=False, progress=lambda: calls.append(None))

    assert len(calls) == 6


def test_the_description_holds_what_a_consumer_needs(tiny_llama: Path) -> None:
    about = TransformersEngine(tiny_llama, layers=(5, 0)).description

    assert (about.num_layers, about.hidden, about.layers) == (6, 64, (0, 5))
    assert (about.final, about.dtype, about.max_tokens) == ("post-norm", "bfloat16", 1024)
    assert about.norm is not None
    assert (about.norm.kind, about.norm.epsilon) == ("rmsnorm", 1e-6)
    model, _ = _reference(tiny_llama, torch.float32)
    assert np.array_equal(about.norm.array(), model.model.norm.weight.detach().numpy())


@pytest.mark.parametrize("layers", [(0, 0), (-1,), (6,), (0, 2, 2)])
def test_layers_that_the_model_has_not_are_refused(
    tiny_llama: Path, layers: tuple[int, ...]
) -> None:
    with pytest.raises(InputError, match=r"different and in 0\.\.5"):
        TransformersEngine(tiny_llama, layers=layers)


def test_a_model_too_small_for_the_default_layers_is_refused(tiny_llama: Path) -> None:
    with pytest.raises(InputError, match=r"\(1, 2, 2\)"):
        TransformersEngine(tiny_llama)


def test_the_default_layers_are_eagle_3s() -> None:
    assert resolve_layers(None, 30) == (1, 14, 26)
    assert resolve_layers(None, 32) == (1, 15, 28)


def test_a_directory_without_a_checkpoint_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no config\.json"):
        TransformersEngine(tmp_path)


def test_a_dtype_that_a_dump_cannot_hold_is_refused(tiny_llama: Path) -> None:
    with pytest.raises(InputError, match="float64"):
        TransformersEngine(tiny_llama, layers=LAYERS, dtype="float64")


def test_the_default_is_to_compute_in_what_the_processor_can() -> None:
    flags = Path("/proc/cpuinfo").read_text(encoding="utf-8").split()

    computes_in = fastest_compute_dtype("bfloat16")

    assert (computes_in == "bfloat16") == bool({"avx512_bf16", "amx_bf16", "bf16"} & set(flags))
    assert fastest_compute_dtype("float32") == "float32"


@pytest.fixture
def copy(tiny_llama: Path, tmp_path: Path) -> Path:
    """Copy the checkpoint."""
    shutil.copytree(tiny_llama, tmp_path / "copy")
    return tmp_path / "copy"


def _hash(path: Path, **change: Any) -> str:
    given = {
        "layers": LAYERS,
        "final": "post-norm",
        "dtype": "bfloat16",
        "compute_dtype": "bfloat16",
    }
    return capture_hash(path, **given | change)


def test_a_copy_has_the_same_hash(tiny_llama: Path, copy: Path) -> None:
    assert _hash(copy) == _hash(tiny_llama)


@pytest.mark.parametrize(
    "change",
    [
        {"layers": (0, 2, 4)},
        {"final": "none"},
        {"dtype": "float32"},
        {"compute_dtype": "float32"},
    ],
)
def test_another_capture_has_another_hash(tiny_llama: Path, change: dict[str, Any]) -> None:
    assert _hash(tiny_llama, **change) != _hash(tiny_llama)


def test_other_weights_of_the_same_shapes_have_another_hash(tiny_llama: Path, copy: Path) -> None:
    model = transformers.AutoModelForCausalLM.from_pretrained(copy, dtype=torch.bfloat16)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.5)
    model.save_pretrained(copy)

    assert _hash(copy) != _hash(tiny_llama)


@pytest.mark.parametrize(
    ("key", "value", "same"),
    [
        ("rms_norm_eps", 1e-3, False),
        ("quantization_config", {"bits": 4}, False),
        ("use_cache", False, True),
        ("transformers_version", "0", True),
    ],
)
def test_only_settings_that_change_a_forward_count(
    tiny_llama: Path, copy: Path, key: str, value: object, *, same: bool
) -> None:
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps(config | {key: value}))

    assert (_hash(copy) == _hash(tiny_llama)) is same
