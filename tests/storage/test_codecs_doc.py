"""docs/codecs.md tells the truth: its decoder decodes our chunks, its table names our codecs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest

from hsstore.cli.options import Codec
from hsstore.codec import CODEC_NAMES, CodecName, codec_metadata, usual_ratio
from hsstore.codec.bias import ChannelBias
from hsstore.dtype import DTypeName, bits_dtype

DOCUMENT = Path(__file__).parents[2] / "docs" / "codecs.md"


def documented_decoder() -> Any:
    names: dict[str, Any] = {}
    for block in re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), re.DOTALL):
        exec(compile(block, str(DOCUMENT), "exec"), names)
    return names["decode_channel_bias"]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("filtered", [1, 5, 7])
def test_its_decoder_gives_back_what_we_filtered_and_the_padding(
    dtype: DTypeName, filtered: int
) -> None:
    bits = bits_dtype(dtype)
    chunk = np.random.default_rng(0).integers(0, 1 << 8 * bits.itemsize, (7, 2, 9), dtype=bits)
    values = chunk.copy()

    tail = ChannelBias((7, 2, 9), dtype).apply(chunk[:filtered], values)

    assert not np.array_equal(values[:filtered], chunk[:filtered])
    decoded = documented_decoder()(values.tobytes() + tail.tobytes(), (7, 2, 9), bits.str)
    np.testing.assert_array_equal(decoded, chunk)


@pytest.mark.parametrize("name", CODEC_NAMES)
def test_its_table_names_every_codec_with_its_settings(name: CodecName) -> None:
    row = re.search(rf"^\| `{name}`.*", DOCUMENT.read_text(), re.MULTILINE)
    assert row

    metadata = codec_metadata(name, 2)
    settings = metadata["configuration"]
    assert f"`{metadata['name']}`" in row[0]
    if metadata["name"] == "blosc":
        expected = (
            f"({settings['cname']}, level {settings['clevel']}, {settings['shuffle']}, "
            f"blocksize {settings['blocksize']:,})"
        )
        assert expected in row[0]


def test_the_command_line_knows_the_same_codecs() -> None:
    names, *_ = get_args(Codec)

    assert get_args(names) == CODEC_NAMES


def test_every_codec_is_told_by_what_a_store_records() -> None:
    recorded = [str(codec_metadata(name, 2)) for name in CODEC_NAMES]

    assert len(set(recorded)) == len(CODEC_NAMES)
    assert usual_ratio(codec_metadata("max", 4)) > usual_ratio(codec_metadata("fast", 2)) > 1.3
    assert usual_ratio(codec_metadata("none", 2)) == 1
