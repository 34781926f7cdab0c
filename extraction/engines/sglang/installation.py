"""The Python that SGLang is installed in: is it there, and is our plugin beside it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from hsstore.errors import InputError, RefusedError

SUPPORTED: Final = "0.5.23"
"""The SGLang to recommend; which ones work is for the plugin to say."""

_PATIENCE_SECONDS: Final = 120
"""The answer takes a tenth of a second, on a cold network file system perhaps many."""


@dataclass(frozen=True, slots=True)
class Installation:
    """What `PYTHON -m hsstore_sglang` says of its environment."""

    hsstore: str
    sglang: str


def find_python(name: Path) -> Path:
    """Return the interpreter's absolute path; links are kept, they are what makes a venv.

    Raises
    ------
    InputError
        There is no such program.
    """
    found = shutil.which(name)
    if found is None:
        raise InputError(
            f"--python {name}: no such interpreter, or not executable. Give the python of the "
            "environment that SGLang is installed in, such as /opt/sglang/bin/python"
        )
    return Path(os.path.abspath(found))  # noqa: PTH100  # Path.resolve would follow the link


def inspect(python: Path) -> Installation:
    """Ask the interpreter what it has.

    Raises
    ------
    InputError
        It cannot run, or lacks SGLang or hsstore.
    RefusedError
        Its SGLang is not one that can be captured from.
    """
    answer = _ask(python)
    if answer.get("sglang") is None:
        raise InputError(
            f"{python} has no SGLang: install it there ({python} -m pip install "
            f"sglang=={SUPPORTED}), or name the interpreter that has one with --python"
        )
    if not answer.get("supported"):
        raise RefusedError(f"SGLang {answer['sglang']} of {python}: {answer.get('problem')}")
    return Installation(str(answer.get("hsstore")), str(answer["sglang"]))


def _ask(python: Path) -> dict[str, Any]:
    command = [str(python), "-m", "hsstore_sglang"]
    try:
        result = subprocess.run(
            command,
            check=False,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=_PATIENCE_SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InputError(f"--python {python} does not run: {error}") from None
    if "No module named" in result.stderr and "hsstore_sglang" in result.stderr:
        raise InputError(
            f"hsstore is not installed beside the SGLang of {python}, and its plugin is what hands "
            f"the hidden states over. Install it there, which changes nothing else: "
            f"{python} -m pip install --no-deps hsstore (or the path of its checkout or wheel)"
        )
    try:
        answer = json.loads(result.stdout)
    except ValueError:
        said = (result.stderr or result.stdout).strip()[-2000:]
        raise InputError(
            f"{python} -m hsstore_sglang ended with {result.returncode}:\n{said}"
        ) from None
    return dict(answer)
