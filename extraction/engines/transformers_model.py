"""A causal language model of the transformers library on the CPU; needs torch."""

from __future__ import annotations

import threading
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np
import torch
import transformers

from extraction.engines.capture_hash import capture_hash
from extraction.engines.decoding import TransformersDecoder
from extraction.engines.engine import EngineDescription, States, resolve_layers
from extraction.spool import DTYPES, Norm
from hsstore.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy.typing as npt

FINAL: Final = "post-norm"
"""What lm_head sees."""

_ARITHMETIC: Final = {
    "bfloat16": {"avx512_bf16", "amx_bf16", "bf16"},
    "float16": {"avx512_fp16", "amx_fp16", "fphp"},
}
"""Processor flags, x86 and Arm, as Linux names them in /proc/cpuinfo."""


class TransformersEngine:
    """Captures outputs of decoder layers, and the final state after the norm, by forward hooks."""

    def __init__(
        self,
        model_dir: Path,
        *,
        layers: Sequence[int] | None = None,
        dtype: str | None = None,
        compute_dtype: str | None = None,
    ) -> None:
        """Load a checkpoint from a directory.

        Parameters
        ----------
        model_dir
            Hugging Face checkpoint.
        layers
            0-based decoder layers; EAGLE-3's three by default.
        dtype
            Of the captured states, a key of `extraction.spool.DTYPES`; the checkpoint's own by
            default.
        compute_dtype
            What the model computes in. By default `dtype`, but float32 where this processor has
            no arithmetic for `dtype`: several times faster there; states are then rounded.

        Raises
        ------
        InputError
            No checkpoint there, layers it does not have, or a dtype that a dump cannot hold.
        """
        if not (model_dir / "config.json").is_file():
            raise InputError(f"{model_dir} is not a checkpoint: it has no config.json")
        # One thread a forward: whoever has more cores runs more forwards at once. Threads that
        # share a forward wait for each other at every layer, many times longer on a busy machine.
        torch.set_num_threads(1)
        config = transformers.AutoConfig.from_pretrained(model_dir, local_files_only=True)
        self._dtype = _torch_dtype(dtype or config.get_text_config().dtype)
        compute = _torch_dtype(compute_dtype or fastest_compute_dtype(_name(self._dtype)))
        self._model = _load(model_dir, compute)
        self._decoder = _find_decoder(self._model)
        self._layers = resolve_layers(layers, len(self._decoder.layers))
        self._running = threading.local()
        """States and progress of the forward that this thread runs: what the hooks fill."""
        self._add_hooks()
        self._description = self._describe(model_dir)

    @property
    def description(self) -> EngineDescription:
        """What is loaded and captured."""
        return self._description

    def capture(
        self,
        input_ids: npt.NDArray[np.int32],
        *,
        predict: bool,
        progress: Callable[[], None],
    ) -> States:
        """Run one sequence; see `Engine.capture`.

        No logits are computed but the last row's, and those only for `predict`.
        """
        ids = torch.from_numpy(input_ids.astype(np.int64))[None]
        shape = (len(input_ids), len(self._layers) + 1, self._description.hidden)
        states = torch.empty(shape, dtype=self._dtype)
        self._running.states, self._running.progress = states, progress
        try:
            with torch.inference_mode():
                final = self._decoder(input_ids=ids, use_cache=False).last_hidden_state
                states[:, -1] = final[0]
                next_token = self._predict(final) if predict else None
        finally:
            del self._running.states, self._running.progress
        return States(_to_numpy(states), next_token)

    def decoder(self) -> TransformersDecoder:
        """Make a decoder that generates with this model, beside its captures.

        Raises
        ------
        InputError
            Not all of its layers attend to all tokens, its rotary frequencies depend on what it
            read before, or its logits are not what its head says of the final state.
        """
        if self._no_generation:
            model_type = self._model.config.get_text_config().model_type
            raise InputError(f"{model_type}: {self._no_generation}")
        head = self._model.get_output_embeddings()
        return TransformersDecoder(self._decoder, head, stop_token_ids(self._model))

    @cached_property
    def _no_generation(self) -> str:
        """Why this model does not generate here; empty where it does."""
        config = self._model.config.get_text_config()
        kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
        windowed = getattr(config, "sliding_window", None) and not hasattr(config, "layer_types")
        if windowed or kinds != {"full_attention"}:
            return "only full attention is generated with"
        rotary = {str(getattr(part, "rope_type", "")) for part in self._decoder.modules()}
        if any("dynamic" in kind or "longrope" in kind for kind in rotary):
            # A generation beside a capture would change the frequencies under it.
            return "no text is generated with rotary frequencies that depend on the length"
        return "" if self._head_says_all() else "its logits are scaled or capped behind its head"

    @torch.inference_mode()
    def _head_says_all(self) -> bool:
        """Try whether the logits are what the head says of the final state, and nothing more."""
        ids = torch.arange(4)[None]
        final = self._decoder(input_ids=ids, use_cache=False).last_hidden_state
        said = self._model.get_output_embeddings()(final).float()
        logits = self._model(input_ids=ids, use_cache=False).logits.float()
        return torch.allclose(said, logits, rtol=1e-3, atol=1e-3)

    def _add_hooks(self) -> None:
        slots = {layer: slot for slot, layer in enumerate(self._layers)}

        def hook_for(layer: int) -> Callable[..., None]:
            def hook(_module: torch.nn.Module, _inputs: object, output: Any) -> None:  # noqa: ANN401
                if not hasattr(self._running, "states"):
                    return  # this thread generates
                if layer in slots:
                    hidden = output[0] if isinstance(output, tuple) else output
                    self._running.states[:, slots[layer]] = hidden[0]
                self._running.progress()

            return hook

        for layer, module in enumerate(self._decoder.layers):
            module.register_forward_hook(hook_for(layer))

    def _predict(self, final: torch.Tensor) -> int:
        return int(self._model.get_output_embeddings()(final[0, -1]).argmax())

    def _describe(self, model_dir: Path) -> EngineDescription:
        config = self._model.config.get_text_config()
        return EngineDescription(
            name="embedded",
            version=f"transformers {transformers.__version__}, torch {torch.__version__}",
            model=str(model_dir),
            num_layers=len(self._decoder.layers),
            hidden=config.hidden_size,
            layers=self._layers,
            final=FINAL,
            dtype=_name(self._dtype),
            norm=_rms_norm(self._decoder.norm),
            capture_hash=capture_hash(
                model_dir,
                layers=self._layers,
                final=FINAL,
                dtype=_name(self._dtype),
                compute_dtype=_name(self._model.dtype),
            ),
            vocabulary=config.vocab_size,
            max_tokens=config.max_position_embeddings,
            flags={
                "attention": config._attn_implementation,  # noqa: SLF001 - has no public name
                "compute_dtype": _name(self._model.dtype),
            },
        )


def fastest_compute_dtype(dtype: str) -> str:
    """Return `dtype` if this processor computes in it, else float32."""
    flags = set(Path("/proc/cpuinfo").read_text(encoding="utf-8").split())
    return dtype if dtype == "float32" or flags & _ARITHMETIC[dtype] else "float32"


def _load(model_dir: Path, dtype: torch.dtype) -> Any:  # noqa: ANN401 - any model class
    return transformers.AutoModelForCausalLM.from_pretrained(
        model_dir, dtype=dtype, local_files_only=True
    )


def _torch_dtype(dtype: str | torch.dtype | None) -> torch.dtype:
    name = str(dtype).removeprefix("torch.")
    if name not in DTYPES:
        raise InputError(f"dtype {name}: choose one of {', '.join(DTYPES)} with --dtype")
    return cast("torch.dtype", getattr(torch, name))


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _find_decoder(model: Any) -> Any:  # noqa: ANN401 - any model class of transformers
    """Find the text decoder, also inside a multimodal model: the module with layers and norm."""
    count = model.config.get_text_config().num_hidden_layers
    for module in model.modules():
        layers = getattr(module, "layers", None)
        right = isinstance(layers, torch.nn.ModuleList) and len(layers) == count
        if right and hasattr(module, "norm"):
            return module
    raise InputError(f"{type(model).__name__} has no decoder with `layers` and `norm`")


def stop_token_ids(model: Any) -> frozenset[int]:  # noqa: ANN401 - any model class
    """Return the tokens that end an answer of this model, by its own settings."""
    configured = model.generation_config.eos_token_id
    if configured is None:
        configured = model.config.get_text_config().eos_token_id
    ids = configured if isinstance(configured, list) else [configured]
    return frozenset(token for token in ids if token is not None)


@torch.inference_mode()
def _rms_norm(module: torch.nn.Module) -> Norm | None:
    """Describe the final norm, if it is `w * x / rms(x)`: proven by using it, not by its name."""
    weight = getattr(module, "weight", None)
    epsilon = getattr(module, "variance_epsilon", getattr(module, "eps", None))
    if weight is None or epsilon is None:
        return None
    x = torch.linspace(-3, 3, len(weight), dtype=weight.dtype)
    exact = x.float()
    expected = weight.float() * exact / (exact.square().mean() + epsilon).sqrt()
    if not torch.allclose(module(x).float(), expected, rtol=0.02, atol=1e-4):
        return None
    return Norm("rmsnorm", float(epsilon), weight.float().numpy().astype("<f4").tobytes())


def _to_numpy(states: torch.Tensor) -> npt.NDArray[Any]:
    if states.dtype == torch.bfloat16:
        return states.view(torch.int16).numpy().view(np.uint16)
    return np.asarray(states.numpy())
