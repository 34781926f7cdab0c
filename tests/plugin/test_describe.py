"""What is read out of a loaded model and its server's flags."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from typing_extensions import override

from extraction.engines.capture_hash import capture_hash
from hsstore_sglang.describe import describe, find_checkpoint, server_info
from hsstore_sglang.model import UnsupportedError, captured_layers, describe_norm
from hsstore_sglang.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Callable

HIDDEN = 64


class RMSNorm(torch.nn.Module):
    """SGLang's, with and without the one that Gemma adds."""

    def __init__(self, *, added: float = 0.0, squared: bool = True) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(1)
        self.weight = torch.nn.Parameter(torch.randn(HIDDEN, generator=generator) - added)
        self.variance_epsilon = 1e-5
        self._added = added
        self._squared = squared

    @override
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Normalise the last dimension."""
        if not self._squared:
            x = x - x.mean(-1, keepdim=True)
        scale = torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + self.variance_epsilon)
        return (x.float() * scale * (self.weight + self._added)).to(x.dtype)


def _model(layers_to_capture: Any, *, wrapped: bool = False) -> Any:
    decoder = torch.nn.Module()
    decoder.layers = torch.nn.ModuleList(torch.nn.Identity() for _ in range(6))
    decoder.norm = RMSNorm()
    decoder.layers_to_capture = layers_to_capture
    causal = torch.nn.Module()
    causal.model = decoder
    outer = torch.nn.Module()
    outer.language_model = causal
    return outer if wrapped else causal


def _args(model: Path, **changes: Any) -> Any:
    usual = {
        "enable_return_aux_hidden_states": True,
        "aux_hidden_state_capture": "dflash",
        "return_aux_hidden_state_layer_ids": [0, 2, 4],
        "chunked_prefill_size": 128,
        "max_prefill_tokens": 1000,
        "model_path": str(model),
        "quantization": None,
        "kv_cache_dtype": "auto",
        "json_model_override_args": "{}",
        "load_format": "auto",
        "tp_size": 2,
        "url": lambda: "http://127.0.0.1:30000",
    }
    return SimpleNamespace(**usual | changes)


def _runner(model: Path, device: str = "cpu", **config: Any) -> Any:
    text = SimpleNamespace(num_hidden_layers=6, hidden_size=HIDDEN)
    usual = {
        "model_path": str(model),
        "revision": None,
        "quantization": None,
        "dtype": torch.bfloat16,
        "hf_text_config": text,
        "context_len": 4096,
    }
    return SimpleNamespace(
        model=_model([1, 3, 5], wrapped=True),
        model_config=SimpleNamespace(**usual | config),
        device=device,
    )


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps({"text_config": {"num_hidden_layers": 6}}))
    (tmp_path / "model.safetensors").write_bytes(b"\2\0\0\0\0\0\0\0{}" + bytes(100))
    return tmp_path


def test_a_model_below_a_language_model_is_described(checkpoint: Path) -> None:
    capture = describe(_runner(checkpoint), _args(checkpoint))

    info = server_info(capture, Settings(Path("/spool"), None, "/log", None, "an instance"))

    assert info.layers == (0, 2, 4)
    assert (info.num_layers, info.hidden, info.slots) == (6, HIDDEN, 4)
    assert (info.dtype, info.final, info.engine) == ("bfloat16", "post-norm", "sglang")
    assert (info.instance, info.log_path) == ("an instance", "/log")
    assert info.flags["layers_to_capture"] == [1, 3, 5]
    assert info.flags["tp_size"] == 2
    assert info.flags["warnings"] == []
    assert info.norm is not None
    assert info.capture_hash == capture_hash(
        checkpoint, layers=(0, 2, 4), final="post-norm", dtype="bfloat16", compute_dtype="bfloat16"
    ), "the same checkpoint in another engine has the same hash"


@pytest.mark.parametrize(
    ("changes", "config"),
    [
        ({}, {"quantization": "fp8"}),
        ({"kv_cache_dtype": "fp8_e5m2"}, {}),
        ({"json_model_override_args": '{"rope_theta": 1}'}, {}),
        ({"load_format": "dummy"}, {}),
        ({"quantize_and_serve": True}, {}),
        ({"quantization_param_path": "scales.json"}, {}),
        ({"rl_quant_profile": "profile.yaml"}, {}),
        ({"rl_on_policy_target": "fsdp"}, {}),
    ],
)
def test_what_changes_the_numbers_beside_the_checkpoint_changes_the_hash(
    checkpoint: Path, changes: dict[str, Any], config: dict[str, Any]
) -> None:
    settings = Settings(Path("/spool"), None, "", None, "an instance")
    usual = server_info(describe(_runner(checkpoint), _args(checkpoint)), settings)

    changed = describe(_runner(checkpoint, **config), _args(checkpoint, **changes))

    assert server_info(changed, settings).capture_hash != usual.capture_hash


def test_a_checkpoint_that_says_how_it_is_quantised_needs_nothing_beside_it(
    checkpoint: Path,
) -> None:
    (checkpoint / "config.json").write_text(
        json.dumps({"text_config": {"quantization_config": {"quant_method": "fp8"}}})
    )

    assert not describe(_runner(checkpoint, quantization="fp8"), _args(checkpoint)).numeric_changes


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"enable_return_aux_hidden_states": False}, "--enable-return-aux-hidden-states"),
        ({"aux_hidden_state_capture": "dspark"}, "DFLASH"),
        ({"pp_size": 2}, "--pp-size 2"),
        ({"enable_prefill_cp": True}, "--enable-prefill-cp"),
        ({"enable_cp_tp_group_sharing": True}, "drop --enable-prefill-cp"),
        ({"enable_layernorm_sp": True}, "--enable-layernorm-sp"),
        ({"enable_attn_tp_input_scattered": True}, "--enable-attn-tp-input-scattered"),
        ({"enable_mis": True}, "--enable-mis"),
        ({"encoder_only": True}, "--encoder-only"),
        ({"attn_cp_size": 2}, "--attn-cp-size"),
        ({"enable_two_batch_overlap": True}, "--enable-two-batch-overlap"),
        ({"enable_pdmux": True}, "--enable-pdmux"),
        ({"disaggregation_mode": "prefill"}, "--disaggregation-mode prefill"),
        ({"dllm_algorithm": "x"}, "--dllm-algorithm"),
        ({"nnodes": 2, "dp_size": 2}, "--nnodes 2"),
        ({"nnodes": 2, "attn_dp_size": 2}, "--nnodes 2"),
    ],
)
def test_flags_that_forbid_a_capture_are_refused_by_name(
    checkpoint: Path, changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(UnsupportedError, match=words):
        describe(_runner(checkpoint), _args(checkpoint, **changes))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"enable_flashinfer_allreduce_fusion": True}, "all-reduce fusion"),
        ({"enable_aiter_allreduce_fusion": True}, "all-reduce fusion"),
        ({"enable_lora": True}, "LoRA"),
        ({"load_format": "dummy"}, "random"),
        ({"aux_hidden_state_capture": "eagle3"}, "could not be checked"),
        ({"return_aux_hidden_state_layer_ids": None}, "could not be checked"),
        ({"chunked_prefill_size": -1}, "HSSTORE_STAGING_MB"),
    ],
)
def test_flags_that_are_dangerous_are_warned_about(
    checkpoint: Path, changes: dict[str, Any], words: str
) -> None:
    warnings = describe(_runner(checkpoint), _args(checkpoint, **changes)).flags["warnings"]

    assert any(words in warning for warning in warnings)


@pytest.mark.parametrize("checked", ["", "0", "1"])
def test_a_cuda_server_is_marked_experimental_until_somebody_has_checked_it(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch, checked: str
) -> None:
    monkeypatch.setenv("HSSTORE_CUDA_CHECKED", checked)

    capture = describe(_runner(checkpoint, device="cuda"), _args(checkpoint))

    marked = any("HSSTORE_CUDA_CHECKED=1" in warning for warning in capture.flags["warnings"])
    assert marked == (checked != "1")


def test_a_dtype_that_no_dump_holds_is_refused(checkpoint: Path) -> None:
    with pytest.raises(UnsupportedError, match="float64"):
        describe(_runner(checkpoint, dtype=torch.float64), _args(checkpoint))


def test_the_usual_forward_is_what_sizes_the_buffer_also_without_chunked_prefill(
    checkpoint: Path,
) -> None:
    chunked = describe(_runner(checkpoint), _args(checkpoint))
    whole = describe(_runner(checkpoint), _args(checkpoint, chunked_prefill_size=-1))

    assert (chunked.chunk_rows, whole.chunk_rows) == (128, 1000)


@pytest.mark.parametrize(
    ("resolved", "convention", "asked", "layers"),
    [
        ([1, 3, 5], "dflash", [0, 2, 4], (0, 2, 4)),
        ([5, 1, 3], "dflash", [4, 0, 2], (0, 2, 4)),
        ({1, 3}, "dflash", [0, 2], (0, 2)),
        ([2, 3, 5], "eagle3", None, (1, 2, 4)),
        ([1, 4], "eagle3", [1, 4], (0, 3)),
    ],
)
def test_layers_are_resolved_from_the_running_model(
    resolved: Any, convention: str, asked: list[int] | None, layers: tuple[int, ...]
) -> None:
    assert captured_layers(_model(resolved), convention, asked) == layers


@pytest.mark.parametrize(
    ("resolved", "convention", "asked"),
    [
        ([1, 4], "dflash", [0, 2]),
        ([0, 2], "dflash", [0, 2]),  # as given: before these layers, or behind them
        ([], "dflash", [0, 2]),
        ([0, 2], "eagle3", None),
        ([], "eagle3", None),
    ],
)
def test_layers_that_cannot_be_told_for_sure_are_refused(
    resolved: Any, convention: str, asked: list[int] | None
) -> None:
    with pytest.raises(UnsupportedError, match=r"layer"):
        captured_layers(_model(resolved), convention, asked)


@pytest.mark.parametrize("added", [0.0, 1.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_norms_weight_is_what_it_multiplies_by(added: float, dtype: torch.dtype) -> None:
    module = RMSNorm(added=added).to(dtype)

    norm = describe_norm(module, HIDDEN)

    assert norm is not None
    assert norm.epsilon == 1e-5
    assert np.allclose(norm.array(), module.weight.detach().float().numpy() + added)


def _with_bias() -> RMSNorm:
    module = RMSNorm()
    module.bias = torch.nn.Parameter(torch.zeros(HIDDEN))
    return module


@pytest.mark.parametrize("make", [lambda: RMSNorm(squared=False), _with_bias])
def test_another_kind_of_norm_is_not_described_as_an_rms_norm(
    make: Callable[[], RMSNorm],
) -> None:
    assert describe_norm(make(), HIDDEN) is None


def test_a_model_of_the_hub_that_is_not_on_this_machine_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    for name in ("somebody/some-model-that-is-nowhere", str(tmp_path / "no such directory")):
        with pytest.raises(UnsupportedError, match="checkpoint's directory"):
            find_checkpoint(name, None)
