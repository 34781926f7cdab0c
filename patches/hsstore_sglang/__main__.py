"""`python -m hsstore_sglang`: say, as one JSON line, whether this environment can capture."""

from __future__ import annotations

import json
import sys

from hsstore_sglang.versions import installed_sglang, plugin_version, problem_of


def main() -> int:
    """Print the line."""
    sglang = installed_sglang()
    problem = problem_of(sglang)
    answer = {
        "hsstore": plugin_version(),
        "sglang": sglang,
        "supported": problem is None,
        "problem": problem,
    }
    sys.stdout.write(json.dumps(answer) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
