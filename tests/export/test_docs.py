"""The commands of docs/formats.md are run as they are written."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from hsstore.report import LeftKind
from hsstore.store import Store
from tests.export.given import LENGTHS, run, without_record

if TYPE_CHECKING:
    import pytest

    from tests.export.given import Library

DOCUMENT = (Path(__file__).parents[2] / "docs" / "formats.md").read_text()


def test_every_command_does_what_is_said(
    library: Library, directory: Path, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(directory)
    store = library.store()
    shutil.copytree(store.path, "states.zarr")
    shutil.copytree(checkpoint, "model")
    without_record(library.copy("specforge", Path("dump")))
    records = [
        {
            "id": store.sample_id(sample),
            "input_ids": store.input_ids(sample).tolist(),
            "loss_mask": [1, *store.loss_mask(sample).tolist()[1:]],
        }
        for sample in range(len(store))
    ]
    Path("data.jsonl").write_text("\n".join(map(json.dumps, records)))

    blocks = re.findall(r"```bash\n(.*?)```", DOCUMENT, re.DOTALL)
    commands = [line for block in blocks for line in block.splitlines()]
    for command in commands:
        words = command.replace("1,14,26", "0,2,3").split()
        assert words[0] == "hsstore"
        result = run(*words[1:])
        assert result.exit_code == 0, (command, result.output)

    assert len(commands) == 7
    told = re.search(r"```\n(tell specforge:.*?)```", DOCUMENT, re.DOTALL)
    again = run(*commands[0].split()[1:]).stdout
    assert told is not None
    for line in told[1].splitlines():
        name = line.split(":")[0]
        assert any(said.startswith(name) for said in again.splitlines()), line
    for path in ("again.zarr", "new.zarr"):
        assert Store.open(path).completion().complete.sum() == len(LENGTHS)


def test_every_reason_for_leaving_a_file_is_explained() -> None:
    for kind in LeftKind:
        assert f"`{kind}`" in DOCUMENT
