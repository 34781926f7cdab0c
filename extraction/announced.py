"""What a server says, or would say, of its model, without asking it for states.

A store belongs to whoever announces the same. Where states come from files, this is what decides which server
may go on with the store.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import ValidationError

from extraction.engines.capture_hash import capture_hash
from extraction.handshake import model_of, norm_weight_of
from extraction.server_wait import spool_errors
from extraction.spool import SpoolView
from hsstore.errors import InputError, InterruptedRunError
from hsstore.semantic.checkpoint import read_tensors
from hsstore.semantic.head import norm_candidates
from hsstore.spec import Model, Norm

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import numpy.typing as npt

    from hsstore.dtype import DTypeName
    from hsstore.spec import FinalState

ASK_A_SERVER = "start the server that is to go on, and give --server instead"
ONE_PLUS = re.compile(
    "gemma|qwen3_next|qwen3_5|qwen4|minimax_m3|muse_|step3p|gigachat3_5|interns2_mobius|^nemotron$"
)
"""Types of models whose final norm multiplies by 1 + weight, or may: a server finds out by using it."""


@dataclass(frozen=True, slots=True)
class Announced:
    """A model, and the weight of its final norm, float32 (hidden,)."""

    model: Model
    norm_weight: npt.NDArray[np.float32]


def announced_by(spool: Path) -> Announced:
    """Read what the server of a spool says of itself.

    Raises
    ------
    RefusedError
        The spool is another user's, or the server does not describe its norm.
    InterruptedRunError
        There is no server, or it is still loading.
    """
    with spool_errors():
        info = SpoolView(spool).server()
    if info is None:
        raise InterruptedRunError(
            f"no server has announced itself in {spool}: wait until it prints `ready`, then run again"
        )
    return Announced(model_of(info), norm_weight_of(info))


def announced_for(
    model_dir: Path,
    *,
    layers: Sequence[int],
    final: FinalState,
    dtype: DTypeName,
    compute_dtype: str,
) -> Announced:
    """Return what a server of a checkpoint would announce, from the checkpoint alone.

    Parameters
    ----------
    layers : ints
        Outputs of 0-based decoder layers, ascending.
    dtype : str
        Of the states.
    compute_dtype : str
        What the server would compute in.

    Raises
    ------
    InputError
        The checkpoint is incomplete, has not these layers, or its final norm cannot be read from it.
    """
    config = _text_config(model_dir)
    weight = _norm_weight(model_dir, config)
    path = model_dir / "config.json"
    try:
        model = Model(
            id=str(model_dir),
            capture_hash=capture_hash(
                model_dir, layers=layers, final=final, dtype=dtype, compute_dtype=compute_dtype
            ),
            num_layers=int(config["num_hidden_layers"]),
            hidden=int(config["hidden_size"]),
            layers=tuple(layers),
            final=final,
            norm=Norm(epsilon=float(config["rms_norm_eps"])),
            dtype=dtype,
        )
    except KeyError as error:
        raise InputError(f"{path}: no {error} there; {ASK_A_SERVER}") from None
    except ValidationError as error:
        raise InputError(f"{model_dir}: {error.errors()[0]['msg']}") from None
    return Announced(model, weight)


def _text_config(model_dir: Path) -> dict[str, Any]:
    path = model_dir / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
        text: dict[str, Any] = config.get("text_config", config)
    except FileNotFoundError:
        raise InputError(f"{model_dir} is not a checkpoint: it has no config.json") from None
    except (OSError, ValueError, AttributeError) as error:
        raise InputError(f"{path}: {error}") from None
    for kind in (str(one.get("model_type", "")) for one in (config, text)):
        if ONE_PLUS.search(kind):
            raise InputError(
                f"{model_dir}: norms of {kind} models multiply by 1 + weight, or may; {ASK_A_SERVER}"
            )
    return text


def _norm_weight(model_dir: Path, config: dict[str, Any]) -> npt.NDArray[np.float32]:
    hidden = int(config.get("hidden_size", 0))
    tensors = read_tensors(model_dir)
    found = norm_candidates(tensors, hidden)
    if len(found) != 1:
        names = ", ".join(one.name for one in found) or "none"
        raise InputError(
            f"{model_dir}: which tensor is the final norm of {hidden} numbers cannot be told ({names}); "
            f"{ASK_A_SERVER}"
        )
    if found[0].name.removesuffix("weight") + "bias" in tensors:
        raise InputError(f"{model_dir}: {found[0].name} comes with a bias; {ASK_A_SERVER}")
    return np.array(found[0].vector())
