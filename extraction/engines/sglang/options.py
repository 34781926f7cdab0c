"""What `hsstore serve --engine sglang` was asked for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class SglangOptions:
    """The command line, checked for types only."""

    model_dir: Path
    python: Path
    """Interpreter of the environment that SGLang is installed in."""
    host: str = "127.0.0.1"
    port: int = 30000
    """0 chooses a free one."""
    spool: Path | None = None
    """`default_spool(port)` where None."""
    spool_group: int | None = None
    """Group id to share the spool with; None keeps it private."""
    layers: tuple[int, ...] | None = None
    """0-based decoder layers; EAGLE-3's where None."""
    dtype: str | None = None
    """What SGLang computes in and captures; the checkpoint's own where None."""
    log: Path | None = None
    """Where SGLang's output goes; `default_log(port)` where None."""
    arguments: tuple[str, ...] = ()
    """SGLang's own arguments, as after `--`. They win over what we would choose."""
