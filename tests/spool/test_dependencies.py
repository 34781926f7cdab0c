"""The spool is installed into inference servers."""

from __future__ import annotations

import subprocess
import sys


def test_the_spool_needs_the_standard_library_and_numpy_only() -> None:
    code = """
import sys
import numpy
before = set(sys.modules)
import extraction.spool
new = {name.split(".")[0] for name in set(sys.modules) - before}
print(sorted(new - set(sys.stdlib_module_names) - {"numpy"}))
"""
    result = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)

    assert result.stdout.decode().strip() == "['extraction']"
