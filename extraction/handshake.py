"""The first request of a run pairs a URL with a spool, and proves the model.

A server whose plugin did not load still answers, and a spool may belong to another server. So one
short request comes first, and its dump must arrive and match. Its states are the golden
fingerprint: kept in a new store, compared with the store's on every later run.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from extraction.check import find_fault
from extraction.requester import CaptureFailedError, DumpMissingError, ServerBusyError
from extraction.server_link import RequestRefusedError, ServerAwayError
from extraction.spool import DumpError
from hsstore.create import Golden
from hsstore.dtype import bits_dtype
from hsstore.errors import InterruptedRunError, RefusedError
from hsstore.spec import Model, Norm

if TYPE_CHECKING:
    import numpy.typing as npt

    from extraction.requester import Requester
    from extraction.spool import Dump, RequestId, ServerInfo, SpoolClient

GOLDEN_ROWS = 32
"""Tokens of the golden prefix, at most: the first ones of the first sample."""
GOLDEN_TOLERANCE = 0.05
"""Relative difference of a slot's states (2-norm) that rounding cannot explain."""
PAUSES_SECONDS = (0.0, 0.5, 1.0, 2.0, 4.0, 8.0, 10.0, 10.0)
"""Before each attempt."""


def model_of(info: ServerInfo) -> Model:
    """Translate what a server says about its model.

    Raises
    ------
    RefusedError
        The server does not say which final norm it has.
    """
    if info.norm is None:
        raise RefusedError("the server does not describe the model's final norm in server.json")
    return Model.model_validate(
        {
            "id": info.model,
            "capture_hash": info.capture_hash,
            "num_layers": info.num_layers,
            "hidden": info.hidden,
            "layers": info.layers,
            "final": info.final,
            "norm": Norm(kind=info.norm.kind, epsilon=info.norm.epsilon),
            "dtype": info.dtype,
        }
    )


def norm_weight_of(info: ServerInfo) -> npt.NDArray[np.float32]:
    """Return the weight of the model's final norm, shape (hidden,)."""
    if info.norm is None:
        raise RefusedError("the server does not describe the model's final norm in server.json")
    return np.asarray(info.norm.array(), dtype=np.float32)


async def shake_hands(
    requester: Requester,
    spool: SpoolClient,
    rid: RequestId,
    tokens: npt.NDArray[np.int32],
    store: str,
    model: Model,
) -> Golden:
    """Ask for the states of a short prefix, alone, and return them.

    Parameters
    ----------
    store : str
        What this client's session names as its store.

    Raises
    ------
    RefusedError
        No dump came, or it is not what was asked for.
    InterruptedRunError
        The server is not there, or it is there and has no room or breaks every request.
    """
    try:
        rid, dump = await _fetch(requester, rid, tokens)
    except DumpMissingError as error:
        raise RefusedError(
            f"handshake: {error}. Either the server runs without hsstore's plugin, or the spool "
            "is that of another server: compare both with what `hsstore serve` printed"
        ) from error
    except (RequestRefusedError, CaptureFailedError, DumpError) as error:
        raise RefusedError(f"handshake: {error}") from error
    fault = find_fault(dump, tokens, store, model)
    states = np.array(dump.hidden)
    dump.close()
    spool.give_back(rid)
    if fault is not None:
        raise RefusedError(f"handshake: the server's dump is wrong: {fault.message}")
    return Golden(tuple(tokens.tolist()), states.view(bits_dtype(model.dtype)))


async def _fetch(
    requester: Requester, rid: RequestId, tokens: npt.NDArray[np.int32]
) -> tuple[RequestId, Dump]:
    """Ask, and ask again while the fault is not the request's."""
    reason = ""
    for pause in PAUSES_SECONDS:
        await asyncio.sleep(pause)
        await requester.wait_until_up()
        try:
            return rid, await requester.fetch(rid, tokens)
        except ServerBusyError as error:
            reason = str(error)
        except ServerAwayError as error:
            requester.park()
            reason = str(error)
        rid = replace(rid, attempt=rid.attempt + 2)  # even and odd: a run may shake hands twice
    raise InterruptedRunError(
        f"handshake: no dump in {len(PAUSES_SECONDS)} attempts, the last time: {reason}; look at "
        "the server's log, then run the same command again"
    )


def refuse_other_golden(mine: npt.NDArray[np.generic], theirs: npt.NDArray[np.generic]) -> None:
    """Compare golden states, both (rows, slots, hidden), beyond what rounding explains.

    Raises
    ------
    RefusedError
        A slot differs: another layer, another checkpoint, another norm.
    """
    a, b = mine.astype(np.float32), theirs.astype(np.float32)
    difference = np.linalg.norm(a - b, axis=(0, 2)) / np.linalg.norm(a, axis=(0, 2))
    worst = int(difference.argmax())
    if difference[worst] > GOLDEN_TOLERANCE:
        raise RefusedError(
            f"the server computes other states than this store holds: slot {worst} of the golden "
            f"prefix differs by {difference[worst]:.1%} (at most {GOLDEN_TOLERANCE:.0%} is "
            "rounding); use the server the store was made with, or another store"
        )
