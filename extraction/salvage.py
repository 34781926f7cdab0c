"""Dumps that a killed run left in the spool: those that still count are used, the rest removed."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from extraction.spool import DumpError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from extraction.spool import RequestId, SpoolClient
    from hsstore.spec import StoreSpec

log = logging.getLogger(__name__)


def salvage(
    spool: SpoolClient, run: str, spec: StoreSpec, pending: npt.NDArray[np.bool_]
) -> dict[int, RequestId]:
    """Sort out what dead runs left, and remove what cannot be used.

    A dump counts if it was made for this store by the same capture, and its sample is pending. The
    client's lock, which is held, proves that the runs are dead. What this run itself left, when it
    held the spool before, is removed. Names that are not of the protocol are left alone.

    Returns
    -------
    dict
        The dump to use, by sample.
    """
    scan = spool.scan()
    usable: dict[int, RequestId] = {}
    removed = 0
    for rid in [*scan.finished, *scan.partial, *scan.errors]:
        usable_here = rid.run != run and rid in scan.finished and rid.sample not in usable
        if usable_here and _counts(spool, rid, spec, pending):
            usable[rid.sample] = rid
        else:
            spool.discard(rid)
            removed += 1
    if usable or removed:
        log.info("of a dead run's dumps, %d are used and %d were removed", len(usable), removed)
    if scan.foreign:
        log.warning("files in the spool that are not ours: %s", ", ".join(scan.foreign))
    return usable


def _counts(
    spool: SpoolClient, rid: RequestId, spec: StoreSpec, pending: npt.NDArray[np.bool_]
) -> bool:
    if rid.sample >= len(pending) or not pending[rid.sample]:
        return False
    try:
        with spool.open_dump(rid) as dump:
            made_for = (dump.metadata.store, dump.metadata.capture_hash)
            return made_for == (spec.store, spec.model.capture_hash)
    except DumpError:
        return False
