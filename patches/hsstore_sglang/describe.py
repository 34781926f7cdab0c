"""Turn a loaded SGLang model into what the spool announces."""

from __future__ import annotations

import json
import os
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from extraction.engines.capture_hash import capture_hash
from extraction.spool import DTYPES, Norm, ServerInfo
from hsstore_sglang.flags import (
    NEEDED,
    data_parallel_size,
    numeric_changes,
    recorded_flags,
    refuse_flags,
    warnings_of,
)
from hsstore_sglang.model import (
    UnsupportedError,
    captured_layers,
    describe_norm,
    find_decoder,
    find_norm,
)
from hsstore_sglang.versions import installed_sglang, plugin_version, warning_of

if TYPE_CHECKING:
    from hsstore_sglang.settings import Settings
    from hsstore_sglang.sglang_types import Arguments, ModelConfig, ModelRunner

FINAL = "post-norm"
"""What SGLang's logits processor sees."""


@dataclass(frozen=True, slots=True)
class Capture:
    """What this server captures. All of it is known once its model is loaded."""

    model: str
    model_dir: Path
    num_layers: int
    hidden: int
    layers: tuple[int, ...]
    dtype: torch.dtype
    norm: Norm | None
    url: str
    flags: dict[str, Any]
    numeric_changes: dict[str, Any]
    """Part of the capture hash beside the checkpoint."""
    chunk_rows: int
    """The most rows of one forward, as far as flags say."""
    writers: int
    """Processes that compute requests of their own."""

    @property
    def slots(self) -> int:
        """States a row: the layers, and the final one."""
        return len(self.layers) + 1

    @property
    def dtype_name(self) -> str:
        """A key of `extraction.spool.DTYPES`."""
        return str(self.dtype).removeprefix("torch.")


def describe(runner: ModelRunner, args: Arguments) -> Capture:
    """Look at a loaded model.

    Raises
    ------
    UnsupportedError
        It cannot be captured; the message says why, and what to do.
    """
    refuse_flags(args)
    config, model = runner.model_config, runner.model
    text = config.hf_text_config
    device = torch.device(runner.device).type
    model_dir = find_checkpoint(config.model_path, config.revision)
    asked = args.return_aux_hidden_state_layer_ids
    layers = captured_layers(model, args.aux_hidden_state_capture, asked)
    dtype = _checked(config.dtype)
    norm = describe_norm(find_norm(find_decoder(model)), text.hidden_size)
    flags = recorded_flags(args, runner)
    warnings = warnings_of(args, device)
    if args.aux_hidden_state_capture != "dflash" or asked is None:
        warnings.append(
            f"the layers {list(layers)} were read out of {type(model).__name__} and could not be "
            f"checked, some models shift EAGLE3's: name them with {NEEDED}"
        )
    if not _is_chunked(args):
        warnings.append(
            "prompts are computed whole: one that exceeds the staging buffer is not captured; set "
            "--chunked-prefill-size, or the buffer's size by HSSTORE_STAGING_MB"
        )
    if norm is None:
        warnings.append(f"{type(model).__name__} has a final norm that hsstore cannot describe")
    if new := warning_of(installed_sglang() or ""):
        warnings.append(new)
    return Capture(
        model=args.model_path,
        model_dir=model_dir,
        num_layers=text.num_hidden_layers,
        hidden=text.hidden_size,
        layers=layers,
        dtype=dtype,
        norm=norm,
        url=args.url(),
        flags=flags | {"layers_to_capture": [k + 1 for k in layers], "warnings": warnings},
        numeric_changes=numeric_changes(args, runner, quantised=_is_quantised(model_dir)),
        chunk_rows=_chunk_rows(args, config),
        writers=data_parallel_size(args),
    )


def server_info(capture: Capture, settings: Settings) -> ServerInfo:
    """Build the announcement; this reads samples of the weight files."""
    return ServerInfo(
        instance=settings.instance,
        capture_hash=capture_hash(
            capture.model_dir,
            layers=capture.layers,
            final=FINAL,
            dtype=capture.dtype_name,
            compute_dtype=capture.dtype_name,
            changes=capture.numeric_changes,
        ),
        model=capture.model,
        num_layers=capture.num_layers,
        hidden=capture.hidden,
        layers=capture.layers,
        final=FINAL,
        dtype=capture.dtype_name,
        norm=capture.norm,
        engine="sglang",
        engine_version=installed_sglang() or "unknown",
        plugin_version=plugin_version(),
        pid=os.getpid(),
        host=socket.gethostname(),
        url=capture.url,
        log_path=settings.log,
        flags=capture.flags,
    )


def find_checkpoint(model_path: str, revision: str | None) -> Path:
    """Return the directory of the checkpoint; that of a hub's name from the local cache.

    Raises
    ------
    UnsupportedError
        It is not on this machine as a directory.
    """
    if (Path(model_path) / "config.json").is_file():
        return Path(model_path)
    from huggingface_hub import snapshot_download  # noqa: PLC0415 - SGLang brings it
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError  # noqa: PLC0415

    try:
        return Path(snapshot_download(model_path, revision=revision, local_files_only=True))
    except (OSError, ValueError, HfHubHTTPError, HFValidationError) as error:
        raise UnsupportedError(
            f"the checkpoint of {model_path} is no directory with a config.json, nor in the local "
            f"cache of the hub ({error}): start the server with the checkpoint's directory"
        ) from None


def _checked(dtype: torch.dtype) -> torch.dtype:
    if str(dtype).removeprefix("torch.") not in DTYPES:
        raise UnsupportedError(f"the model computes in {dtype}; dumps hold {', '.join(DTYPES)}")
    return dtype


def _is_quantised(model_dir: Path) -> bool:
    config = json.loads((model_dir / "config.json").read_bytes())
    places = (config, config.get("text_config") or {})
    return any("quantization_config" in place for place in places) or (
        (model_dir / "hf_quant_config.json").is_file()
    )


def _chunk_rows(args: Arguments, config: ModelConfig) -> int:
    if _is_chunked(args):
        return int(args.chunked_prefill_size)
    # One longer prompt alone may exceed it: a buffer for the longest could be most of the memory.
    return int(args.max_prefill_tokens or config.context_len)


def _is_chunked(args: Arguments) -> bool:
    return args.chunked_prefill_size is not None and args.chunked_prefill_size > 0
