"""Generate schemas/*.schema.json from the types in `hsstore.report.DOCUMENTS`.

python tools/make_schemas.py            write them
python tools/make_schemas.py --check    fail when they are not up to date
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from hsstore.report import DOCUMENTS

SCHEMAS = Path(__file__).resolve().parent.parent / "schemas"


def generate() -> dict[str, str]:
    """Return the text of every schema file, by file name."""
    texts = {}
    for name, document in DOCUMENTS.items():
        # The reader of a schema sees what is written: defaults are always there.
        schema = document.model_json_schema(mode="serialization")
        dialect = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
        texts[f"{name}.schema.json"] = json.dumps(dialect | schema, indent=2) + "\n"
    return texts


def stale(directory: Path) -> list[str]:
    """Return the names of schema files that are missing, left over or not up to date."""
    expected = generate()
    found = {path.name: path.read_text() for path in directory.glob("*.schema.json")}
    return sorted(
        name for name in expected.keys() | found.keys() if expected.get(name) != found.get(name)
    )


def main() -> int:
    """Write or check the schemas."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; fail when stale")
    if parser.parse_args().check:
        names = stale(SCHEMAS)
        if names:
            print(f"stale: {', '.join(names)}; run python tools/make_schemas.py", file=sys.stderr)
        return bool(names)
    for name in set(stale(SCHEMAS)) - generate().keys():
        (SCHEMAS / name).unlink()
    for name, text in generate().items():
        (SCHEMAS / name).write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
