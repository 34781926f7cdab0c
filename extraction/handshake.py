"""The first requests of a run pair a URL with a spool, and prove the model.

A server whose plugin did not load still answers, a spool may belong to another server, and a URL
to a router that spreads requests over several. So a few short requests come first, and all their
dumps must arrive and match. The states of the first one, asked for alone, are the golden
fingerprint: kept in a new store, compared with the store's on every later run.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from extraction.asking import PAUSES_SECONDS, all_of, ask_patiently
from extraction.check import find_fault
from extraction.requester import CaptureFailedError, DumpMissingError
from extraction.server_link import RequestRefusedError
from extraction.spool import DumpError, RequestId
from hsstore.create import Golden
from hsstore.dtype import bits_dtype
from hsstore.errors import InterruptedRunError, RefusedError
from hsstore.spec import Model, Norm

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from extraction.requester import Requester
    from extraction.spool import ServerInfo, SpoolClient

GOLDEN_ROWS = 32
"""Tokens of the golden prefix, at most: the first ones of the first sample."""
GOLDEN_TOLERANCE = 0.05
"""Relative difference of a slot's states (2-norm) that rounding cannot explain."""
SPREAD_REQUESTS = 7
"""Requests after the golden one. A balancer that picks one of two servers at random sends all of
them to ours once in 128 runs; one that goes round never does."""
SPREAD_ROWS = 8
"""Tokens of each, at most."""
HANDSHAKE_ATTEMPTS = 2 * len(PAUSES_SECONDS)
"""Numbers that one handshake may use: every other one."""
LOST = (
    "Either the server runs without hsstore's plugin, or the spool is that of another server "
    "(compare both with what `hsstore serve` printed), or a router or load balancer at this URL "
    "spreads requests over several servers: give the server's own URL"
)
SOME_LOST = (
    "The dump of the request before did come. Either a router or load balancer at this URL spreads "
    "requests over several servers (give the server's own URL), or one of the server's processes "
    "runs without hsstore's plugin: see its log"
)


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
    """Return the weight of the model's final norm, shape (hidden,).

    Raises
    ------
    RefusedError
        The server does not give it, or not that of these states.
    """
    if info.norm is None:
        raise RefusedError("the server does not describe the model's final norm in server.json")
    weight = np.asarray(info.norm.array(), dtype=np.float32)
    if weight.shape != (info.hidden,):
        raise RefusedError(
            f"server.json: the final norm has {weight.size:,} weights, states are {info.hidden:,} wide: "
            "the server's plugin describes another module; report it with its log"
        )
    return weight


@dataclass(frozen=True, slots=True)
class Handshake:
    """Who shakes hands, and for which store."""

    requester: Requester
    spool: SpoolClient
    model: Model
    run: str
    store: str
    """What this client's session names as its store."""
    samples: int
    """In the plan: the ids of the requests begin behind them."""

    async def golden(self, tokens: npt.NDArray[np.int32], attempt: int) -> Golden:
        """Ask for the states of a short prefix, alone, and return them.

        Parameters
        ----------
        attempt : int
            0 for the first handshake of a run with a server, 1 for a second one, and so on by
            `HANDSHAKE_ATTEMPTS`: a server captures no id twice.

        Raises
        ------
        RefusedError
            No dump came, or it is not what was asked for.
        InterruptedRunError
            The server is not there, or it is there and has no room or breaks every request.
        """
        rid = RequestId(self.run, self.samples, attempt, len(tokens))
        states = await self._ask(rid, tokens, lost=LOST)
        return Golden(tuple(tokens.tolist()), states.view(bits_dtype(self.model.dtype)))

    async def refuse_spread(self, tokens: npt.NDArray[np.int32], attempt: int = 0) -> None:
        """Send several requests at once, which differ from the first token on: all must arrive.

        Parameters
        ----------
        tokens : int32 (n,)
            What they are cut from; n >= 1.
        attempt : int
            As in `golden`.

        Raises
        ------
        RefusedError, InterruptedRunError
            As in `golden`.
        """
        asked = [
            self._ask(
                RequestId(self.run, self.samples + 1 + at, attempt, len(part)), part, lost=SOME_LOST
            )
            for at, part in enumerate(_cut(tokens))
        ]
        await all_of(asked)

    async def _ask(
        self, rid: RequestId, tokens: npt.NDArray[np.int32], *, lost: str
    ) -> npt.NDArray[np.generic]:
        """Return states of shape (T, slots, hidden), a copy; give the dump back."""
        try:
            rid, dump = await ask_patiently(self.requester, rid, tokens, prompt=True)
        except DumpMissingError as error:
            raise RefusedError(f"handshake: {error}. {lost}") from error
        except (RequestRefusedError, CaptureFailedError, DumpError) as error:
            raise RefusedError(f"handshake: {error}") from error
        except InterruptedRunError as error:
            raise InterruptedRunError(f"handshake: {error}") from error
        fault = find_fault(dump, tokens, self.store, self.model, self.requester.knows)
        states = np.array(dump.hidden)
        dump.close()
        self.spool.give_back(rid)
        if fault is not None:
            raise RefusedError(f"handshake: the server's dump is wrong: {fault.message}")
        return states


def _cut(tokens: npt.NDArray[np.int32]) -> Iterator[npt.NDArray[np.int32]]:
    """Cut prefixes that a balancer which groups by prefix takes for strangers.

    >>> [part.tolist() for part in _cut(np.arange(4, dtype=np.int32))][:3]
    [[0, 1, 2, 3], [1, 2, 3, 0], [2, 3, 0, 1]]
    """
    step = max(1, len(tokens) // SPREAD_REQUESTS)
    for at in range(SPREAD_REQUESTS):
        yield np.roll(tokens, -at * step)[:SPREAD_ROWS]


def refuse_other_server(before: ServerInfo, now: ServerInfo) -> None:
    """Refuse a server that was started again, if it has another model now.

    Raises
    ------
    RefusedError
    """
    if now.capture_hash != before.capture_hash:
        raise RefusedError("the server came back with another model; nothing of it was used")


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
