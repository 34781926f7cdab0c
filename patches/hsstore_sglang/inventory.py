"""Every symbol of SGLang that the plugin touches. docs/sglang-inventory.md says why, for people."""

from __future__ import annotations

import importlib
import inspect
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

_RUNNER: Final = "sglang.srt.model_executor.model_runner"
_BATCH: Final = "sglang.srt.model_executor.forward_batch_info"
_LOGITS: Final = "sglang.srt.layers.logits_processor"
_UPDATER: Final = "sglang.srt.model_executor.model_runner_components.weight_updater"
_HOOKS: Final = "sglang.srt.plugins.hook_registry"
_CONTEXT: Final = "sglang.srt.runtime_context"

FORWARD: Final = f"{_RUNNER}.ModelRunner.forward"
"""Behind it, states are captured."""
LOADED: Final = f"{_RUNNER}.ModelRunner.init_cuda_graphs"
"""Behind it, the model is loaded and its layers are resolved: the capture is announced."""
WEIGHT_UPDATES: Final = tuple(
    f"{_UPDATER}.WeightUpdater.{name}"
    for name in (
        "update_weights_from_disk",
        "update_weights_from_tensor",
        "update_weights_from_ipc",
        "load_weights_from_distributed",
    )
)
"""Behind any of them, nothing is captured any more."""


@dataclass(frozen=True, slots=True)
class Symbol:
    """Something of SGLang's that must be there."""

    module: str
    name: str
    """Dotted, inside the module; the last part may be a field of a dataclass."""
    parameters: tuple[str, ...] = ()
    """Parameters by these names, of a function."""


def _split(target: str) -> Symbol:
    module, owner, name = target.rsplit(".", 2)
    return Symbol(module, f"{owner}.{name}")


SYMBOLS: Final = (
    Symbol(_HOOKS, "HookRegistry.register", ("target", "hook", "hook_type")),
    Symbol(_HOOKS, "HookType.AFTER"),
    Symbol("sglang.srt.plugins", "load_plugins"),
    Symbol(_RUNNER, "ModelRunner.forward", ("self", "forward_batch")),
    Symbol(_RUNNER, "ModelRunner.init_cuda_graphs", ("self",)),
    Symbol(_RUNNER, "ModelRunnerOutput.logits_output"),
    Symbol(_LOGITS, "LogitsProcessorOutput.hidden_states"),
    Symbol(_LOGITS, "LogitsProcessorOutput.last_hidden_states"),
    Symbol(_BATCH, "ForwardBatch.forward_mode"),
    Symbol(_BATCH, "ForwardBatch.rids"),
    Symbol(_BATCH, "ForwardBatch.extend_seq_lens_cpu"),
    Symbol(_BATCH, "ForwardBatch.extend_prefix_lens_cpu"),
    Symbol(_BATCH, "ForwardBatch.input_ids"),
    Symbol(_BATCH, "ForwardMode.is_extend"),
    Symbol(_BATCH, "ForwardMode.is_target_verify"),
    Symbol(_CONTEXT, "get_parallel"),
    *(
        Symbol(_CONTEXT, f"ParallelContext.{rank}")
        for rank in ("attn_tp_rank", "attn_cp_rank", "attn_dp_rank", "pp_rank", "dp_rank")
    ),
    Symbol("sglang.srt.arg_groups.model_override_base", "resolved_view", ("server_args",)),
    *(
        Symbol("sglang.srt.server_args", f"ServerArgs.{flag}")
        for flag in (
            "enable_return_aux_hidden_states",
            "aux_hidden_state_capture",
            "return_aux_hidden_state_layer_ids",
            "model_path",
            "chunked_prefill_size",
            "max_prefill_tokens",
            "url",
        )
    ),
    *map(_split, WEIGHT_UPDATES),
)


def find_missing(symbols: Sequence[Symbol] = SYMBOLS) -> list[str]:
    """Say which symbols the SGLang of this environment lacks, a line each."""
    return [problem for symbol in symbols if (problem := _problem_of(symbol))]


def _problem_of(symbol: Symbol) -> str:
    try:
        found: object = importlib.import_module(symbol.module)
    except ImportError as error:
        return f"{symbol.module}: cannot be imported ({error})"
    for part in symbol.name.split("."):
        # A field of a dataclass without a default is no attribute of the class.
        fields = getattr(found, "__dataclass_fields__", {})
        if part in fields:
            return ""
        if not hasattr(found, part):
            return f"{symbol.module}: no {symbol.name}"
        found = getattr(found, part)
    return _missing_parameters(symbol, found) if symbol.parameters else ""


def _missing_parameters(symbol: Symbol, function: object) -> str:
    if not callable(function):
        return f"{symbol.module}: {symbol.name} is not a function"
    known = inspect.signature(function).parameters
    missing = [name for name in symbol.parameters if name not in known]
    return f"{symbol.module}: {symbol.name} has no {', '.join(missing)}" if missing else ""
