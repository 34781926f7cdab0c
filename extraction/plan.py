"""What a run would need, from the data and the model's configuration alone: no server, no torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import psutil

from extraction.dataset import load_dataset
from extraction.engines.engine import resolve_layers
from extraction.preflight import free_space, preflight
from extraction.spool import headroom_bytes
from extraction.staging import is_there, staged_shard_bytes, where_bytes_go
from hsstore.codec import USUAL_RATIOS
from hsstore.dtype import native_dtype
from hsstore.errors import InputError
from hsstore.layout import choose_geometry, plan_layout

if TYPE_CHECKING:
    from collections.abc import Sequence

    from extraction.dataset import DatasetReport
    from extraction.options import DataOptions
    from extraction.preflight import Preflight
    from hsstore.create import LayoutOptions
    from hsstore.dtype import DTypeName
    from hsstore.location import Location

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108  # where spools are


def plan_run(
    store: Location,
    stage: Path | None,
    data: DataOptions,
    model_dir: Path,
    *,
    layers: Sequence[int] | None,
    dtype: DTypeName,
    sizes: LayoutOptions,
    memory_bytes: int,
) -> tuple[Preflight, DatasetReport]:
    """Read the data, lay it out, and compare what the run needs with this machine.

    Parameters
    ----------
    store : Path or RemotePath
        Where the store would be; need not exist. An object store is asked for it once, before the data are read.
    stage : Path, optional
        Where what goes to an object store would lie meanwhile; with other temporary files if it is left out.
    layers
        0-based decoder layers to capture beside the final state; EAGLE-3's three where None.

    Raises
    ------
    InputError
        The data, the layers or the model's config.json are wrong, or an object store refuses.
    UnreachableError
        An object store does not answer.
    """
    is_there(store)  # a run would begin so: a wrong bucket or key is said now
    hidden, num_layers = _model_size(model_dir)
    # Data that is tokenised already needs no tokenizer.
    tokenizer_dir = model_dir if (model_dir / "tokenizer_config.json").exists() else None
    dataset, report = load_dataset(data.files, tokenizer_dir, data)
    geometry = choose_geometry(
        dataset.length,
        slots=len(resolve_layers(layers, num_layers)) + 1,
        hidden=hidden,
        itemsize=native_dtype(dtype).itemsize,
        chunk_rows=sizes.chunk_rows,
        shard_rows=sizes.shard_rows,
        span_samples=sizes.span_samples,
    )
    needs = preflight(
        plan_layout(dataset.length, geometry),
        dataset.length.astype(np.int32),
        np.ones(len(dataset), dtype=np.bool_),
        space=free_space(where_bytes_go(store, stage)),
        staged_shard_bytes=staged_shard_bytes(store),
        spool_budget_bytes=headroom_bytes(SHARED_MEMORY) // 2,
        memory_bytes=memory_bytes,
        memory_free_bytes=psutil.virtual_memory().available,
        skip_too_large=False,
        usual_ratio=USUAL_RATIOS[sizes.codec],
    )
    return needs, report


def _model_size(model_dir: Path) -> tuple[int, int]:
    """Return hidden width and number of layers; multimodal models nest them."""
    path = model_dir / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
        text = config.get("text_config", config)
        return int(text["hidden_size"]), int(text["num_hidden_layers"])
    except FileNotFoundError:
        raise InputError(f"{model_dir} is not a checkpoint: it has no config.json") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{path}: no hidden_size and num_hidden_layers there ({error})") from None
