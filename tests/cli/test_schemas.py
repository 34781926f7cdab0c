"""The schemas in the repository are those of the types, and describe what is written."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import jsonschema

ROOT = Path(__file__).parents[2]
SCHEMAS = ROOT / "schemas"
CHECK = [sys.executable, "tools/make_schemas.py", "--check"]


def test_the_schemas_are_up_to_date() -> None:
    result = subprocess.run(CHECK, cwd=ROOT, capture_output=True, text=True, check=False)

    assert (result.returncode, result.stderr) == (0, "")


def test_stale_missing_and_leftover_schemas_fail_the_check(tmp_path: Path) -> None:
    for name in ("schemas", "tools"):
        shutil.copytree(ROOT / name, tmp_path / name)
    (tmp_path / "schemas" / "info.schema.json").unlink()
    (tmp_path / "schemas" / "old.schema.json").write_text("{}")
    (tmp_path / "schemas" / "store.schema.json").write_text("{}")

    result = subprocess.run(CHECK, cwd=tmp_path, capture_output=True, text=True, check=False)

    assert result.returncode == 1
    assert "stale: info.schema.json, old.schema.json, store.schema.json;" in result.stderr


def test_what_a_store_says_of_itself_is_valid(healthy: Path) -> None:
    root = json.loads((healthy / "zarr.json").read_text())
    run = json.loads((healthy / "runs" / "r1" / "zarr.json").read_text())

    jsonschema.validate(root["attributes"]["hsstore"], _schema("store"))  # type: ignore[no-untyped-call]
    jsonschema.validate(run["attributes"]["hsstore_run"], _schema("run"))  # type: ignore[no-untyped-call]


def _schema(name: str) -> object:
    return json.loads((SCHEMAS / f"{name}.schema.json").read_text())
