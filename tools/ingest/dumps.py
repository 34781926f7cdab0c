"""Synthetic dumps in a spool, as a server would leave them."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from extraction.spool import ClientInfo, Norm, RequestId, ServerInfo, SpoolClient, SpoolServer
from hsstore.dataset import TokenizedDataset, TokenizedSample

if TYPE_CHECKING:
    from pathlib import Path

    import numpy.typing as npt

    from extraction.spool import Dump

DUMPS_FOR = "00000000-0000-0000-0000-000000000000"
"""What the dumps name as their store."""


@dataclass(frozen=True)
class Dumps:
    """The dumps, and what they were made from."""

    spool: SpoolClient
    rids: list[RequestId]
    dataset: TokenizedDataset
    info: ServerInfo
    nbytes: int

    def open(self, sample: int) -> Dump:
        """Map one."""
        return self.spool.open_dump(self.rids[sample])


def server_info(instance: str, hidden: int) -> ServerInfo:
    """Describe the server whose dumps these could be: three layers and the final state."""
    weight = np.ones(hidden, dtype="<f4").tobytes()
    return ServerInfo(
        instance=instance,
        capture_hash="0" * 64,
        model="synthetic",
        num_layers=61,
        hidden=hidden,
        layers=(1, 29, 57),
        final="post-norm",
        dtype="bfloat16",
        norm=Norm("rmsnorm", 1e-6, weight),
        engine="bench",
        engine_version="0",
        plugin_version="0",
        pid=os.getpid(),
        host="localhost",
        url="http://127.0.0.1:1",
    )


def synthetic_bits(rng: np.random.Generator, rows: int, hidden: int) -> npt.NDArray[np.uint16]:
    """Make states (rows, 4, hidden): normal, scaled per slot and channel; raw bfloat16 bits."""
    scale = rng.lognormal(0.0, 0.5, (1, 4, hidden)).astype(np.float32)
    values = rng.standard_normal((rows, 4, hidden), dtype=np.float32) * scale
    return (values.view(np.uint32) >> 16).astype(np.uint16)


def write_dumps(directory: Path, samples: int, rows: int, hidden: int) -> Dumps:
    """Let a spool server write one dump a sample."""
    rng = np.random.default_rng(0)
    server = SpoolServer(directory)
    info = server_info(server.instance, hidden)
    server.announce(info)
    spool = SpoolClient(directory, ClientInfo("bench", DUMPS_FOR))
    tokenized, rids = [], []
    for sample in range(samples):
        length = int(rng.integers(rows // 2, rows * 3 // 2))
        tokens = rng.integers(0, 1000, length).astype(np.int32)
        rid = RequestId("bench", sample, 1, length)
        server.put(str(rid), 0, synthetic_bits(rng, length, hidden), tokens)
        server.seal(str(rid))
        tokenized.append(TokenizedSample(f"s{sample}", tokens, np.ones(length, np.uint8)))
        rids.append(rid)
    dataset = TokenizedDataset.from_samples(tokenized)
    return Dumps(spool, rids, dataset, info, dataset.tokens * 4 * hidden * 2)
