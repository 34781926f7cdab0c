"""What the two sides say of themselves: `server.json` and `client.json`."""

from __future__ import annotations

import base64
import json
from dataclasses import asdict, dataclass, field, fields
from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

PROTOCOL: Final = 1
"""Version of the spool protocol; both sides must speak the same."""

DTYPES: Final = {"bfloat16": "BF16", "float16": "F16", "float32": "F32"}
"""dtypes of hidden states, and what safetensors calls them."""

FINAL_STATES: Final = ("post-norm", "pre-norm", "none")


@dataclass(frozen=True, slots=True)
class Norm:
    """The model's final norm: consumers that apply one themselves need it."""

    kind: str
    """`rmsnorm` is the one known today."""
    epsilon: float
    weight: bytes = field(repr=False)
    """float32, little-endian, shape (hidden,); base64 in JSON."""

    def array(self) -> npt.NDArray[np.float32]:
        """Return the weight, shape (hidden,)."""
        return np.frombuffer(self.weight, dtype="<f4")


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """All a client must know of a server, written once its model is loaded."""

    instance: str
    """Unique for this start of the server; in the metadata of every dump."""
    capture_hash: str
    """Over all that decides the numbers, 64 hex digits."""
    model: str
    num_layers: int
    hidden: int
    """Width of a hidden state."""
    layers: tuple[int, ...]
    """States after these decoder layers, 0-based, ascending, before any later norm."""
    final: str
    """The last slot: `post-norm`, `pre-norm` or `none`."""
    dtype: str
    """A key of `DTYPES`."""
    norm: Norm | None
    engine: str
    engine_version: str
    plugin_version: str
    pid: int
    host: str
    url: str
    log_path: str = ""
    """Empty where the log goes to the terminal."""
    flags: dict[str, Any] = field(default_factory=dict)
    """Flags of the engine that matter to the numbers or to the speed."""
    isolated: bool = False
    """Each request is computed alone: no number depends on what else is in flight."""

    def __post_init__(self) -> None:
        ascending = tuple(sorted(set(self.layers)))
        if ascending != self.layers or not all(0 <= k < self.num_layers for k in self.layers):
            raise ValueError(f"layers {self.layers} are not ascending in 0..{self.num_layers - 1}")
        if self.final not in FINAL_STATES or self.dtype not in DTYPES or not self.slots:
            raise ValueError(f"cannot capture final={self.final!r} as dtype={self.dtype!r}")

    @property
    def slots(self) -> int:
        """Captured states a row: the layers, and the final one."""
        return len(self.layers) + (self.final != "none")

    def to_json(self) -> bytes:
        """Encode for `server.json`."""
        content = asdict(self) | {"protocol": PROTOCOL}
        if self.norm is not None:
            content["norm"]["weight"] = base64.b64encode(self.norm.weight).decode()
        return json.dumps(content, indent=1).encode()

    @classmethod
    def from_json(cls, text: bytes) -> ServerInfo:
        """Decode `server.json`; fields that a newer plugin added are ignored.

        Raises
        ------
        ValueError
            Another protocol version, a missing field, or values that contradict each other.
        """
        content = json.loads(text)
        if content.get("protocol") != PROTOCOL:
            raise ValueError(f"protocol {content.get('protocol')!r}, this side speaks {PROTOCOL}")
        known = {one.name: content[one.name] for one in fields(cls) if one.name in content}
        try:
            norm = known["norm"]
            if norm is not None:
                known["norm"] = Norm(**norm | {"weight": base64.b64decode(norm["weight"])})
            return cls(**known | {"layers": tuple(known["layers"])})
        except (KeyError, TypeError) as error:
            raise ValueError(f"incomplete: {error}") from error


@dataclass(frozen=True, slots=True)
class ClientInfo:
    """The one client of a spool. Requests of any other run are not captured."""

    run: str
    """The run token in this client's request ids."""
    store: str
    """UUID of the store; in the metadata of every dump."""

    def to_json(self) -> bytes:
        """Encode for `client.json`."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_json(cls, text: bytes) -> ClientInfo:
        """Decode `client.json`."""
        return cls(**json.loads(text))
