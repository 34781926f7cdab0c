"""Names of codecs, and the JSON that records one: `codec` of a store, and its `zarr.json`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

from numcodecs.blosc import list_compressors

from hsstore.errors import RefusedError

if TYPE_CHECKING:
    from collections.abc import Mapping

CodecName = Literal["fast", "max", "zstd", "lz4", "none"]
"""What a user may choose when a store is created."""
CODEC_NAMES: tuple[CodecName, ...] = get_args(CodecName)
DEFAULT_CODEC: CodecName = "fast"
USUAL_RATIOS: dict[CodecName, float] = {
    "fast": 1.4,
    "max": 1.48,
    "zstd": 1.4,
    "lz4": 1.15,
    "none": 1.0,
}
"""Raw over stored bytes of bfloat16 states, as measured."""

CHANNEL_BIAS = "hsstore.channel_bias"
UNCOMPRESSED: dict[str, Any] = {"name": "bytes", "configuration": {"endian": "little"}}
SHUFFLES = ("noshuffle", "shuffle", "bitshuffle")
BLOCKSIZE_BYTES = 512 << 10
"""At Blosc's own default the mantissa and the exponents share an entropy table: 1.24, not 1.42."""


@dataclass(frozen=True, slots=True)
class BloscSettings:
    """The configuration of a Zarr `blosc` codec."""

    cname: str
    clevel: int
    shuffle: str
    typesize: int
    blocksize: int

    @property
    def is_ours(self) -> bool:
        """Say whether our own encoder writes such frames."""
        return self == fast_settings(self.typesize)

    def to_json(self) -> dict[str, Any]:
        """Return the codec as it stands in zarr.json."""
        configuration = {
            "cname": self.cname,
            "clevel": self.clevel,
            "shuffle": self.shuffle,
            "typesize": self.typesize,
            "blocksize": self.blocksize,
        }
        return {"name": "blosc", "configuration": configuration}


@dataclass(frozen=True, slots=True)
class CodecSpec:
    """How the chunks of a store are encoded, before their crc32c."""

    channel_bias: bool
    blosc: BloscSettings | None


def fast_settings(itemsize: int) -> BloscSettings:
    """Return the default."""
    return BloscSettings("zstd", 1, "shuffle", itemsize, BLOCKSIZE_BYTES)


def codec_metadata(name: CodecName, itemsize: int) -> dict[str, Any]:
    """Return what a store records of a codec.

    Parameters
    ----------
    itemsize : int
        Bytes of an element: 2 or 4.
    """
    fast = fast_settings(itemsize)
    match name:
        case "fast":
            return fast.to_json()
        case "max":
            return {"name": CHANNEL_BIAS, "configuration": {"compressor": fast.to_json()}}
        case "zstd":
            return BloscSettings("zstd", 1, "shuffle", itemsize, 2 * BLOCKSIZE_BYTES).to_json()
        case "lz4":
            return BloscSettings("lz4", 5, "bitshuffle", itemsize, BLOCKSIZE_BYTES).to_json()
        case "none":
            return UNCOMPRESSED


def usual_ratio(metadata: Mapping[str, Any]) -> float:
    """Return what a store's codec usually makes of its states; 1 where that is not known."""
    for name, ratio in USUAL_RATIOS.items():
        if metadata in (codec_metadata(name, 2), codec_metadata(name, 4)):
            return ratio
    return 1.0


def parse_codec(metadata: Mapping[str, Any]) -> CodecSpec:
    """Read what a store records of its codec.

    Raises
    ------
    RefusedError
        This version does not have the codec.
    """
    if metadata == UNCOMPRESSED:
        return CodecSpec(channel_bias=False, blosc=None)
    biased = metadata.get("name") == CHANNEL_BIAS
    try:
        inner = metadata["configuration"]["compressor"] if biased else metadata
        settings = BloscSettings(**inner["configuration"])
    except (KeyError, TypeError):
        raise _unknown(metadata) from None
    known = settings.cname in list_compressors() and settings.shuffle in SHUFFLES
    if inner.get("name") != "blosc" or not known or (biased and not settings.is_ours):
        raise _unknown(metadata)
    return CodecSpec(channel_bias=biased, blosc=settings)


def _unknown(metadata: Mapping[str, Any]) -> RefusedError:
    return RefusedError(
        f"hidden_states is encoded with {dict(metadata)}; this version of hsstore has blosc, "
        f"{CHANNEL_BIAS} before blosc, and bytes: read it with the version that wrote it, or a "
        "later one"
    )
