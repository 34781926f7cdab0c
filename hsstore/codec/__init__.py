"""How chunks of `hidden_states` are stored: the codecs of `--codec`, and our own encoder."""

from __future__ import annotations

from hsstore.codec.chunk import CRC_BYTES, ChunkCodec
from hsstore.codec.metadata import (
    CHANNEL_BIAS,
    CODEC_NAMES,
    DEFAULT_CODEC,
    UNCOMPRESSED,
    USUAL_RATIOS,
    CodecName,
    codec_metadata,
    parse_codec,
    usual_ratio,
)

__all__ = [
    "CHANNEL_BIAS",
    "CODEC_NAMES",
    "CRC_BYTES",
    "DEFAULT_CODEC",
    "UNCOMPRESSED",
    "USUAL_RATIOS",
    "ChunkCodec",
    "CodecName",
    "codec_metadata",
    "parse_codec",
    "usual_ratio",
]
