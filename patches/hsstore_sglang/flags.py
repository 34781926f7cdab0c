"""Flags of the server: those that forbid a capture, those to warn of, those worth recording."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import torch

from hsstore_sglang.model import UnsupportedError
from hsstore_sglang.settings import CUDA_CHECKED, is_cuda_checked

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hsstore_sglang.sglang_types import Arguments, ModelRunner

NEEDED: Final = (
    "--enable-return-aux-hidden-states --speculative-algorithm DFLASH "
    "--return-aux-hidden-state-layer-ids LAYER..."
)
"""What turns the capture on; the layers are 0-based, and the state after each is captured."""

_NEVER_TOGETHER: Final[tuple[tuple[str, Any, str], ...]] = (
    ("pp_size", 1, "a pipeline rank sees its own layers only; use --tp-size"),
    ("attn_cp_size", 1, "context parallelism spreads the rows of a sequence; drop it"),
    ("enable_prefill_cp", False, "context parallelism spreads the rows of a sequence; drop it"),
    (
        "enable_cp_tp_group_sharing",
        False,
        "context parallelism spreads the rows of a sequence; drop --enable-prefill-cp",
    ),
    ("enable_layernorm_sp", False, "the rows of a prompt would be spread over ranks; drop it"),
    (
        "enable_attn_tp_input_scattered",
        False,
        "the rows of a prompt would be spread over ranks; drop it",
    ),
    ("enable_mis", False, "scored items take another way through the model; drop it"),
    ("encoder_only", False, "there is no language model in it; drop it"),
    ("enable_two_batch_overlap", False, "captured layers would be skipped; drop it"),
    ("enable_pdmux", False, "the forward of a prompt is split; drop it"),
    ("dllm_algorithm", None, "diffusion models compute a prompt several times"),
    ("disaggregation_mode", "null", "use a server that does both prefill and decode"),
)
"""Flag, its harmless value, and why any other one forbids a capture."""

_NUMERIC: Final = (
    "modelopt_quant",
    "quantization_param_path",
    "quantize_and_serve",
    "rl_on_policy_target",
    "rl_quant_profile",
)
"""Flags that change the numbers wherever they are set at all."""

_CUDA_UNPROVEN: Final = (
    "the CUDA path of the plugin is experimental: run tools/check_capture_gpu.py on this kind of GPU, "
    f"and once it has passed, start servers with {CUDA_CHECKED}=1"
)


def refuse_flags(args: Arguments) -> None:
    """Refuse servers whose captures would be missing or wrong.

    Raises
    ------
    UnsupportedError
        With the flag, the reason and the remedy.
    """
    problem = next(_problems(args), None)
    if problem is not None:
        raise UnsupportedError(problem)


def _problems(args: Arguments) -> Iterator[str]:
    if not _is_set(args, "enable_return_aux_hidden_states"):
        yield f"the server was started without {NEEDED}; `hsstore serve --print-command` shows all"
    if _get(args, "aux_hidden_state_capture") == "dspark":
        yield f"--speculative-algorithm DSPARK names layers in another way: use {NEEDED}"
    if _get(args, "nnodes", 1) > 1 and data_parallel_size(args) > 1:
        yield (
            f"--nnodes {args.nnodes} with data parallelism: ranks on other machines cannot write "
            "into this machine's spool; start one server with its own spool on each node"
        )
    for name, harmless, text in _NEVER_TOGETHER:
        if _get(args, name, harmless) != harmless:
            yield f"--{name.replace('_', '-')} {_get(args, name)}: {text}"


def warnings_of(args: Arguments, device: str) -> list[str]:
    """List, for people, what may make captured numbers differ from what they should be."""
    return list(_warnings(args, device))


def _warnings(args: Arguments, device: str) -> Iterator[str]:
    if device == "cuda" and not is_cuda_checked():
        yield _CUDA_UNPROVEN
    fused = any(
        _is_set(args, name)
        for name in (
            "enable_flashinfer_allreduce_fusion",
            "flashinfer_allreduce_fusion_backend",
            "enable_aiter_allreduce_fusion",
        )
    )
    if fused and _get(args, "tp_size", 1) > 1:
        yield (
            "all-reduce fusion is on: captured layers may hold partial sums on some models; compare "
            "with a run under --enforce-disable-flashinfer-allreduce-fusion, or trust the canary"
        )
    if _is_set(args, "enable_single_batch_overlap"):
        yield "--enable-single-batch-overlap together with a capture was never tried"
    if _is_set(args, "enable_lora") or _get(args, "lora_paths"):
        yield "LoRA is on: hsstore captures the base model, its requests name no adapter"
    if _get(args, "load_format") == "dummy":
        yield "--load-format dummy: the weights are random"


def recorded_flags(args: Arguments, runner: ModelRunner) -> dict[str, Any]:
    """Collect what a store's run record should say of its server."""
    flags = {
        name: _get(args, name)
        for name in (
            "tp_size",
            "ep_size",
            "nnodes",
            "quantization",
            "kv_cache_dtype",
            "chunked_prefill_size",
            "max_prefill_tokens",
            "moe_runner_backend",
            "moe_a2a_backend",
            "load_format",
            "enable_mixed_chunk",
            "enable_deterministic_inference",
        )
    }
    flags["quantization"] = runner.model_config.quantization
    return flags | {
        "dp_size": data_parallel_size(args),
        "attention_dp": _get(args, "attn_dp_size", 1) > 1,
        "attention_backend": getattr(runner, "prefill_attention_backend_str", None)
        or _get(args, "attention_backend"),
        "radix_cache": not _is_set(args, "disable_radix_cache"),
        "device": str(runner.device),
        "torch": torch.__version__,
    }


def numeric_changes(args: Arguments, runner: ModelRunner, *, quantised: bool) -> dict[str, Any]:
    """Collect what changes the numbers and is not in the checkpoint: part of the capture hash.

    Parameters
    ----------
    quantised
        Whether the checkpoint itself says how it is quantised.
    """
    changes = {
        "quantization": None if quantised else runner.model_config.quantization,
        "kv_cache_dtype": _unless(_get(args, "kv_cache_dtype"), "auto"),
        "json_model_override_args": _unless(_get(args, "json_model_override_args"), "{}"),
        "load_format": "dummy" if _get(args, "load_format") == "dummy" else None,
        **{name: _get(args, name) for name in _NUMERIC},
    }
    return {name: value for name, value in changes.items() if value}


def data_parallel_size(args: Arguments) -> int:
    """Count the processes that compute requests of their own: replicas times attention groups."""
    return int(_get(args, "dp_size", 1)) * int(_get(args, "attn_dp_size", 1))


def _get(args: Arguments, name: str, default: Any = None) -> Any:  # noqa: ANN401 - any flag
    value = getattr(args, name, default)
    return default if value is None else value


def _is_set(args: Arguments, name: str) -> bool:
    return bool(getattr(args, name, False))


def _unless(value: object, usual: object) -> object:
    return None if value == usual else value
