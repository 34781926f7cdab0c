"""Ask a server again for a few samples of a store, and compare what it gives with what is stored.

The samples are asked for alone, one after the other; nothing is written into the store. Only a server
that captures what the store holds is asked: any other is refused before the first request.
"""

from __future__ import annotations

import asyncio
import uuid
from dataclasses import dataclass
from traceback import clear_frames
from typing import TYPE_CHECKING, Any

import numpy as np

from extraction.asking import ask_patiently
from extraction.canary import ASKING_FAILED, FIRST_RID
from extraction.check import find_fault
from extraction.comparison import Comparison, compare, judge
from extraction.deviation import ROWS_AT_ONCE, Deviations, row_differences, smallest_threshold
from extraction.handshake import Handshake, model_of
from extraction.server_link import ServerLink
from extraction.server_wait import refuse_router, wait_for_server
from extraction.session import open_session
from extraction.spool import RequestId, dump_bytes
from hsstore.errors import CorruptStoreError, InputError, NotExtractedError, RefusedError
from hsstore.report import AgainstReport, AgainstSample, AgainstSlot

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from extraction.access import Access
    from extraction.options import ExtractOptions
    from extraction.session import Session
    from extraction.spool import Dump, ServerInfo
    from hsstore.report import AgainstVerdict
    from hsstore.store import Store

GOLDEN_ROWS = 32
"""Tokens of the first request where the store has no golden prefix."""
LARGEST = 1e9
"""Reported for what is infinite: JSON has no such number."""
_SEVERITY: tuple[AgainstVerdict, ...] = ("not-compared", "equal", "same", "rows", "differs")


def check_against(
    store: Store, options: ExtractOptions, access: Access, *, samples: int, seed: int
) -> AgainstReport:
    """Compare some complete samples of a store with what a server gives for them now.

    Parameters
    ----------
    options : ExtractOptions
        Where the server and its spool are, and how long to wait for it.
    samples : int
        How many are chosen, by `seed`; fewer where fewer are complete.

    Raises
    ------
    InputError
        No sample is complete.
    RefusedError
        It is another server, another client uses its spool, or it gives none of the samples.
    InterruptedRunError
        The server is not there, or went away.
    """
    complete = np.flatnonzero(store.completion().complete)
    if not complete.size:
        raise InputError(f"{store.location}: no sample is complete, so there is nothing to compare")
    generator = np.random.default_rng(seed)
    chosen = np.sort(generator.choice(complete, min(samples, complete.size), replace=False))
    against = _Against(store, options, access, chosen.tolist())
    return asyncio.run(against.execute(seed))


@dataclass(frozen=True, slots=True)
class _Found:
    """What came of one sample."""

    sample: int
    comparison: Comparison | None
    why_not: str = ""


class _Against:
    """One comparison over one session."""

    def __init__(
        self, store: Store, options: ExtractOptions, access: Access, samples: Sequence[int]
    ) -> None:
        self._store = store
        self._options = options
        self._access = access
        self._samples = samples
        self._run = uuid.uuid4().hex[:12]
        self._sent = 0

    async def execute(self, seed: int) -> AgainstReport:
        options, spec = self._options, self._store.spec
        async with ServerLink(options.server, 1, self._access) as link:
            info = await wait_for_server(link, options.spool, options.server_wait_seconds)
            self._refuse_other(info)
            async with open_session(
                options, options.spool, link, self._run, spec.store, self._refuse_other
            ) as session:
                await session.requester.wait_until_up()
                await refuse_router(link)
                golden, floor = await self._golden(session)
                found = [await self._ask(session, info, sample) for sample in self._samples]
        quantised = bool(info.flags.get("quantization"))
        noise = Deviations(
            spec.model.slots, smallest_threshold(spec.model.dtype, quantised=quantised)
        )
        noise.add_repeat(floor)
        return _report(self._store, info, seed, golden, floor, found, noise.threshold)

    def _refuse_other(self, info: ServerInfo) -> None:
        self._store.spec.refuse_other_model(model_of(info))

    async def _golden(self, session: Session) -> tuple[Comparison | None, npt.NDArray[np.float64]]:
        """Pair URL and spool with a short prefix, asked for twice: the golden one, if there is one.

        Returns
        -------
        golden : Comparison, optional
            With the store's golden states.
        floor : float64 (T, slots)
            How well the server repeats itself.
        """
        store = self._store
        dtype, prefix = store.spec.model.dtype, store.spec.golden_input_ids
        tokens = np.array(prefix or store.input_ids(self._samples[0])[:GOLDEN_ROWS], np.int32)
        hand = Handshake(
            session.requester,
            session.spool,
            store.spec.model,
            self._run,
            store.spec.store,
            len(store),
        )
        first, second = [(await hand.golden(tokens, attempt)).bits for attempt in (0, 1)]
        floor = row_differences(first, second, dtype)
        if not prefix:
            return None, floor
        expected = store.plan_array("golden").view(store.bits)
        return compare(lambda rows: expected[rows], first, dtype), floor

    async def _ask(self, session: Session, info: ServerInfo, sample: int) -> _Found:
        """Ask for one sample, and compare it; say why not, where the server does not give it."""
        tokens = await asyncio.to_thread(self._store.input_ids, sample)
        needed, room = dump_bytes(len(tokens), info), session.spool.headroom_bytes()
        if needed > room:
            return _Found(
                sample, None, f"it needs {needed:,} bytes in the spool, {room:,} are free"
            )
        self._sent += 1
        # It names a sample that does not exist: nobody ever salvages it.
        index = len(self._store) + FIRST_RID + self._sent
        rid = RequestId(self._run, index, 0, len(tokens))
        try:
            rid, dump = await ask_patiently(session.requester, rid, tokens, prompt=True)
        except ASKING_FAILED as error:
            return _Found(sample, None, str(error))
        found = await asyncio.to_thread(self._compare, session, sample, tokens, dump)
        dump.close()
        session.spool.give_back(rid)
        return found

    def _compare(
        self, session: Session, sample: int, tokens: npt.NDArray[np.int32], dump: Dump
    ) -> _Found:
        store = self._store
        model = store.spec.model
        fault = find_fault(dump, tokens, store.spec.store, model, session.requester.knows)
        if fault is not None:
            return _Found(sample, None, f"what the server gave is wrong: {fault.message}")
        chunk_rows = store.spec.geometry.chunk_rows
        step = -(-ROWS_AT_ONCE // chunk_rows) * chunk_rows

        def stored(rows: slice) -> npt.NDArray[Any]:
            return store.states(sample, rows=rows).view(store.bits)

        try:
            return _Found(sample, compare(stored, dump.hidden.view(store.bits), model.dtype, step))
        except (CorruptStoreError, NotExtractedError) as error:
            clear_frames(
                error.__traceback__
            )  # they hold views of the dump, in a cycle of references
            return _Found(sample, None, f"the stored states cannot be read: {error}")


# --- the report -------------------------------------------------------------------------------


def _report(
    store: Store,
    info: ServerInfo,
    seed: int,
    golden: Comparison | None,
    floor: npt.NDArray[np.float64],
    found: Sequence[_Found],
    tolerance: npt.NDArray[np.float64],
) -> AgainstReport:
    """Put it together.

    Raises
    ------
    RefusedError
        Nothing was compared.
    """
    compared = [one.comparison for one in found if one.comparison is not None]
    if not compared:
        raise RefusedError(
            f"none of {len(found)} samples could be compared with {info.url}, the last one because: "
            f"{found[-1].why_not}"
        )
    samples = tuple(_sample(store, one, tolerance) for one in found)
    moved = None if golden is None else float(golden.median.max())
    good_golden = golden is None or bool((golden.median <= tolerance).all())
    return AgainstReport(
        ok=good_golden and all(one.verdict != "differs" for one in samples),
        server=info.url,
        engine=f"{info.engine} {info.engine_version}",
        seed=seed,
        compared=len(compared),
        bit_equal=sum(one.verdict == "equal" for one in samples),
        golden=None if moved is None else min(moved, LARGEST),
        floor=float(np.median(floor, axis=0).max()),
        slots=_slots(store, compared, tolerance),
        samples=samples,
    )


def _sample(store: Store, found: _Found, tolerance: npt.NDArray[np.float64]) -> AgainstSample:
    verdicts: list[tuple[AgainstVerdict, str]] = [("not-compared", found.why_not)]
    if found.comparison is not None:
        verdicts = judge(found.comparison, tolerance)
    return AgainstSample(
        sample=found.sample,
        sample_id=store.sample_id(found.sample),
        rows=store.index.length[found.sample],
        verdict=_worst(verdicts),
        detail="; ".join(detail for _, detail in verdicts if detail),
    )


def _slots(
    store: Store, compared: Sequence[Comparison], tolerance: npt.NDArray[np.float64]
) -> tuple[AgainstSlot, ...]:
    model = store.spec.model
    judged = [judge(one, tolerance) for one in compared]
    rows = np.array([len(one.difference) for one in compared])
    difference = np.minimum(np.concatenate([one.difference for one in compared]), LARGEST)
    cosine = np.concatenate([one.cosine for one in compared])
    median = np.minimum(np.max([one.median for one in compared], axis=0), LARGEST)
    equal = np.average([one.equal for one in compared], axis=0, weights=rows)
    return tuple(
        AgainstSlot(
            slot=slot,
            name=f"layer {model.layers[slot]}" if slot < len(model.layers) else "final",
            equal=float(equal[slot]),
            median=float(median[slot]),
            mean=float(difference[:, slot].mean()),
            worst=float(difference[:, slot].max()),
            cosine=float(cosine[:, slot].mean()),
            least_cosine=float(cosine[:, slot].min()),
            tolerance=float(tolerance[slot]),
            verdict=_worst([one[slot] for one in judged]),
        )
        for slot in range(model.slots)
    )


def _worst(verdicts: Sequence[tuple[AgainstVerdict, str]]) -> AgainstVerdict:
    return max((verdict for verdict, _ in verdicts), key=_SEVERITY.index)
