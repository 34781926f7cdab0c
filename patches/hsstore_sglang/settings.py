"""What the environment says: the plugin has no other configuration."""

from __future__ import annotations

import os
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping, MutableMapping

SPOOL: Final = "HSSTORE_SPOOL"
"""The spool directory. Unset or empty: the plugin is inert."""
GROUP: Final = "HSSTORE_SPOOL_GROUP"
"""Numeric id of a group to share the spool with."""
LOG: Final = "HSSTORE_LOG"
"""Path of the server's log, for people who look for it."""
STAGING_MB: Final = "HSSTORE_STAGING_MB"
"""Host memory for states between the forward and the spool."""
CUDA_CHECKED: Final = "HSSTORE_CUDA_CHECKED"
"""Set to 1 where tools/check_capture_gpu.py has passed on this kind of GPU: no warning then."""
INSTANCE: Final = "HSSTORE_INSTANCE"
"""UUID of this start of the server; made by its first process, inherited by the others."""


class SettingsError(ValueError):
    """A variable has a value that cannot be used."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The variables, checked."""

    spool: Path
    group: int | None
    log: str
    staging_bytes: int | None
    """None: sized by what the server computes at once."""
    instance: str


def is_configured(environment: Mapping[str, str] = os.environ) -> bool:
    """Tell whether there is a spool to write to."""
    return bool(environment.get(SPOOL))


def is_cuda_checked(environment: Mapping[str, str] = os.environ) -> bool:
    """Tell whether somebody says that the CUDA path was checked."""
    return environment.get(CUDA_CHECKED) == "1"


def ensure_instance(environment: MutableMapping[str, str] = os.environ) -> bool:
    """Name this start of the server, in its first process; returns whether this is that one."""
    if environment.get(INSTANCE):
        return False
    renew_instance(environment)
    return True


def renew_instance(environment: MutableMapping[str, str] = os.environ) -> None:
    """Name another start of a server in the process that started one before."""
    environment[INSTANCE] = str(uuid.uuid4())


def switch_off(environment: MutableMapping[str, str] = os.environ) -> None:
    """Make the processes that this one will start inert."""
    environment.pop(SPOOL, None)


def read_settings(environment: Mapping[str, str] = os.environ) -> Settings:
    """Read the variables.

    Raises
    ------
    SettingsError
        One has a value that cannot be used; the message names it.
    """
    spool = Path(environment[SPOOL])
    if not spool.is_absolute():
        raise SettingsError(f"{SPOOL}={spool} must be an absolute path: processes start elsewhere")
    staging_mb = _number(environment, STAGING_MB)
    return Settings(
        spool=spool,
        group=_number(environment, GROUP),
        log=environment.get(LOG, ""),
        staging_bytes=None if staging_mb is None else staging_mb << 20,
        instance=environment[INSTANCE],
    )


def _number(environment: Mapping[str, str], name: str) -> int | None:
    text = environment.get(name, "")
    if not text:
        return None
    if not (text.isascii() and text.isdigit()) or (name == STAGING_MB and int(text) == 0):
        raise SettingsError(f"{name}={text} must be a positive whole number")
    return int(text)
