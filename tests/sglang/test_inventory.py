"""Every symbol of SGLang that the plugin touches is there, in the SGLang that is tested."""

from __future__ import annotations

import json
import os
import subprocess

import pytest

from tests.sglang.serving import PYTHON

CHECK = """
import json
from hsstore_sglang.inventory import find_missing
print(json.dumps(find_missing()))
"""


@pytest.mark.timeout(600)
def test_no_symbol_of_sglang_that_the_plugin_touches_is_missing() -> None:
    environment = {key: value for key, value in os.environ.items() if key != "HSSTORE_SPOOL"}

    result = subprocess.run(
        [PYTHON, "-c", CHECK], check=False, capture_output=True, text=True, env=environment
    )

    assert result.returncode == 0, result.stderr
    missing = json.loads(result.stdout.splitlines()[-1])
    assert not missing, "SGLang has changed under the plugin, see docs/sglang-inventory.md:\n" + (
        "\n".join(missing)
    )
