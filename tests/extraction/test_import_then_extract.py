"""Files of a half-finished dump into a new store, and a real server for the rest."""

from __future__ import annotations

import json
import os
import shutil
from typing import TYPE_CHECKING, Any

from typer.testing import CliRunner

from hsstore.cli.app import app
from hsstore.export import Options, export_store
from hsstore.store import Store
from tests.extraction.running import run_here
from tests.extraction.tiny import make_lengths, write_data

if TYPE_CHECKING:
    from pathlib import Path

    from tests.extraction.processes import Server

SAMPLES = 12


async def test_extract_does_the_rest_of_a_half_finished_dump(
    server: Server, tiny_model: Path, store: Path
) -> None:
    data = write_data(store.with_name("data.jsonl"), make_lengths(SAMPLES))
    first = await run_here(store, server.url, server.spool, data)
    assert first.code == 0, first.log
    whole, dump = Store.open(store), store.with_name("dump")
    export_store(store, dump, Options("specforge"))
    (dump / "hsstore-export.json").unlink()
    cut, again, *rest = sorted(dump.rglob("*.ckpt"))
    os.truncate(cut, cut.stat().st_size // 2)
    shutil.copy(again, again.with_name("data_9.ckpt"))
    for path in rest[SAMPLES // 2 :]:
        path.unlink()

    for_model, for_server = store.with_name("b.zarr"), store.with_name("c.zarr")
    said = ("--format", "specforge", "--layers", "0,2,4", "--data", data, "--json")
    served = f"{server.url}={server.spool}"
    report = _import(dump, for_model, *said, "--model", tiny_model)
    filling = await run_here(for_model, server.url, server.spool)
    _import(dump, for_server, *said, "--server", served)

    # Before any server was asked it is known which one may go on: the store says what that announces.
    assert (report["created"], report["complete"], report["pending"]) == (True, 7, 5)
    assert [one["sample"] for one in report["taken"]] == list(range(1, 8))
    kinds = {one["file"].rpartition("/")[2]: one["kind"] for one in report["left"]}
    assert kinds == {cut.name: "truncated", "data_9.ckpt": "duplicate"}
    assert filling.code == 0, filling.log
    filled, other = Store.open(for_model), Store.open(for_server)
    assert filled.completion().digest.tolist() == whole.completion().digest.tolist()
    for one in (filled, other):
        assert one.spec.model.model_dump(exclude={"id"}) == whole.spec.model.model_dump(
            exclude={"id"}
        )
        norm = one.plan_array("norm_weight")
        assert norm.tolist() == whole.plan_array("norm_weight").tolist()


def _import(*arguments: str | Path) -> dict[str, Any]:
    import hsstore.cli  # noqa: F401, PLC0415  # registers the commands

    result = CliRunner().invoke(app, ["import", *map(str, arguments)])
    assert result.exit_code == 1, result.output  # a file that was cut off is left
    report: dict[str, Any] = json.loads(result.stdout)
    return report
