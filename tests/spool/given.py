"""A small server's description, for the tests of the spool and of the plugin that writes into it."""

from __future__ import annotations

import numpy as np

from extraction.spool import Norm, ServerInfo

LAYERS, HIDDEN = (0, 2), 6
SLOTS = len(LAYERS) + 1
RUN = "0123456789ab"


def make_info() -> ServerInfo:
    """Describe a model of 4 layers, 6 wide, in bfloat16."""
    return ServerInfo(
        instance="set by announce",
        capture_hash="c" * 64,
        model="a model",
        num_layers=4,
        hidden=HIDDEN,
        layers=LAYERS,
        final="post-norm",
        dtype="bfloat16",
        norm=Norm("rmsnorm", 1e-5, np.arange(HIDDEN, dtype="<f4").tobytes()),
        engine="test",
        engine_version="1",
        plugin_version="2",
        pid=3,
        host="host",
        url="http://127.0.0.1:1",
        flags={"piece_tokens": 256},
    )
