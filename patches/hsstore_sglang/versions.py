"""Which versions of SGLang this plugin works with."""

from __future__ import annotations

import re
from importlib import metadata
from typing import Final

OLDEST: Final = (0, 5, 23)
"""The first that captures auxiliary states without a draft model, and keeps the final state."""
TESTED: Final = (0, 5, 23)
"""The newest that the tests run."""

_RELEASE = re.compile(r"(\d+)\.(\d+)\.(\d+)")


def installed_sglang() -> str | None:
    """Return the version of SGLang beside this plugin; None where there is none."""
    return _version("sglang")


def plugin_version() -> str:
    """Return the version of hsstore."""
    return _version("hsstore") or "unknown"


def problem_of(sglang: str | None) -> str | None:
    """Say why this version cannot be used, and what to do; None where it can.

    >>> problem_of("0.5.23")
    >>> problem_of("0.5.22")
    'SGLang 0.5.22 cannot capture auxiliary hidden states without a draft model: install 0.5.23 or newer'
    """
    if sglang is None:
        return (
            "no SGLang is installed beside the plugin: install hsstore into SGLang's own environment "
            "with `pip install --no-deps`"
        )
    release = _release(sglang)
    if release is None:
        return f"SGLang's version {sglang!r} is not understood: install a release, {_text(OLDEST)} or newer"
    if release < OLDEST:
        return (
            f"SGLang {sglang} cannot capture auxiliary hidden states without a draft model: "
            f"install {_text(OLDEST)} or newer"
        )
    return None


def warning_of(sglang: str) -> str | None:
    """Say that a version is newer than those tested; None where it is not.

    >>> warning_of("0.5.23.post1")
    >>> warning_of("0.6.0")
    'SGLang 0.6.0 is newer than 0.5.23, the newest that hsstore was tested with'
    """
    release = _release(sglang)
    if release is None or release <= TESTED:
        return None
    return f"SGLang {sglang} is newer than {_text(TESTED)}, the newest that hsstore was tested with"


def _release(version: str) -> tuple[int, ...] | None:
    match = _RELEASE.match(version)
    return tuple(int(part) for part in match.groups()) if match else None


def _text(release: tuple[int, ...]) -> str:
    return ".".join(map(str, release))


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
