"""Every symbol of SGLang that the plugin touches. docs/sglang-inventory.md says why, for people."""

from __future__ import annotations

import importlib
import inspect
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

_RUNNER: Final = "sglang.srt.model_executor.model_runner"
_BATCH: Final = "sglang.srt.model_executor.forward_batch_info"
_CONFIG: Final = "sglang.srt.configs.model_config"
_LOGITS: Final = "sglang.srt.layers.logits_processor"
_UPDATER: Final = "sglang.srt.model_executor.model_runner_components.weight_updater"
_HOOKS: Final = "sglang.srt.plugins.hook_registry"
_CONTEXT: Final = "sglang.srt.runtime_context"

FORWARD: Final = f"{_RUNNER}.ModelRunner.forward"
"""Behind it, states are captured."""
LOADED: Final = f"{_RUNNER}.ModelRunner.init_cuda_graphs"
"""Behind it, the model is loaded and its layers are resolved: the capture is announced."""
ENGINE: Final = "sglang.srt.entrypoints.engine.Engine.__init__"
"""Before it, in the process that starts servers, the next one gets a name of its own."""
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
    of_instances: bool = False
    """Only objects have it: it is looked for in the source of the class."""


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
    *(
        Symbol(_RUNNER, f"ModelRunner.{name}", of_instances=True)
        for name in ("is_draft_worker", "model", "model_config", "server_args", "device")
    ),
    *(
        Symbol(_CONFIG, f"ModelConfig.{name}", of_instances=True)
        for name in (
            "model_path",
            "revision",
            "quantization",
            "dtype",
            "hf_text_config",
            "context_len",
        )
    ),
    Symbol(_CONTEXT, "get_parallel"),
    Symbol(_CONTEXT, "ParallelContext.attn_dp_size", of_instances=True),
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
            "attn_dp_size",
            "dp_size",
            "url",
        )
    ),
    *map(_split, WEIGHT_UPDATES),
)


STARTING_SYMBOLS: Final = (_split(ENGINE),)
"""Of the process that starts servers: none that computes needs them, nor should import them."""


def find_missing(symbols: Sequence[Symbol] = (*SYMBOLS, *STARTING_SYMBOLS)) -> list[str]:
    """Say which symbols the SGLang of this environment lacks, a line each."""
    return [problem for symbol in symbols if (problem := _problem_of(symbol))]


def _problem_of(symbol: Symbol) -> str:
    try:
        found: object = importlib.import_module(symbol.module)
    except ImportError as error:
        return f"{symbol.module}: cannot be imported ({error})"
    if symbol.of_instances:
        return _missing_on_instances(symbol, found)
    for part in symbol.name.split("."):
        # A field of a dataclass without a default is no attribute of the class.
        fields = getattr(found, "__dataclass_fields__", {})
        if part in fields:
            return ""
        if not hasattr(found, part):
            return f"{symbol.module}: no {symbol.name}"
        found = getattr(found, part)
    return _missing_parameters(symbol, found) if symbol.parameters else ""


def _missing_on_instances(symbol: Symbol, module: object) -> str:
    owner, name = symbol.name.split(".")
    bases = inspect.getmro(getattr(module, owner)) if hasattr(module, owner) else ()
    if any(name in vars(base) or _is_named_in_source(base, name) for base in bases):
        return ""
    return f"{symbol.module}: no {symbol.name}"


def _is_named_in_source(base: type, name: str) -> bool:
    """Tell whether a class sets this attribute, or its module names it as a string."""
    if base.__module__ == "builtins":
        return False
    try:
        own, around = (
            inspect.getsource(base),
            inspect.getsource(importlib.import_module(base.__module__)),
        )
    except (OSError, TypeError):  # installed without its source: nothing can be said
        return True
    return bool(re.search(rf"\bself\.{name}\s*(:|,|=(?!=))", own)) or f'"{name}"' in around


def _missing_parameters(symbol: Symbol, function: object) -> str:
    if not callable(function):
        return f"{symbol.module}: {symbol.name} is not a function"
    known = inspect.signature(function).parameters
    missing = [name for name in symbol.parameters if name not in known]
    return f"{symbol.module}: {symbol.name} has no {', '.join(missing)}" if missing else ""
