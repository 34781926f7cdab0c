"""What dead runs left in a spool is used or removed; what this run itself left is removed."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from extraction.salvage import salvage
from extraction.spool import ClientInfo, RequestId, SpoolClient, SpoolServer
from hsstore.testing.stores import make_store
from tests.spool.given import HIDDEN, SLOTS, make_info

if TYPE_CHECKING:
    from pathlib import Path


def test_only_dumps_of_other_runs_are_used_and_nothing_else_stays(tmp_path: Path) -> None:
    spec = make_store(tmp_path / "s.zarr", [5, 5, 5]).spec
    dead, ours = RequestId("dead", 0, 1, 5), RequestId("alive", 1, 1, 5)
    info = replace(make_info(), capture_hash=spec.model.capture_hash)
    with SpoolServer(tmp_path / "spool") as server:
        server.announce(info)
        for rid in (dead, ours):
            with SpoolClient(tmp_path / "spool", ClientInfo(rid.run, spec.store)):
                hidden = np.zeros((5, SLOTS, HIDDEN), np.uint16)
                server.put(str(rid), 0, hidden, np.zeros(5, np.int32))

        with SpoolClient(tmp_path / "spool", ClientInfo("alive", spec.store)) as spool:
            usable = salvage(spool, "alive", spec, np.ones(3, np.bool_))

            assert usable == {0: dead}
            assert set(spool.scan().finished) == {dead}
