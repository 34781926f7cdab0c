"""Data parallel training on gloo: every rank makes the same steps, or it would hang."""

from __future__ import annotations

import multiprocessing
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import start_processes
from torch.nn.parallel import DistributedDataParallel

from hsstore.loaders import Eagle3Stream, StreamLoader

if TYPE_CHECKING:
    from hsstore.store import Store

RANKS = 3


def train(rank: int, store: str, directory: str) -> None:
    """Train one epoch as one rank, and write down what it saw."""
    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group(
        "gloo", init_method=f"file://{directory}/rendezvous", rank=rank, world_size=RANKS
    )
    stream = Eagle3Stream(store, pack_rows=60, seed=5)  # its rank is that of torch.distributed
    model = DistributedDataParallel(torch.nn.Linear(32, 16))
    seen = []
    workers: Any = {"num_workers": 2, "multiprocessing_context": "fork"} if rank == 0 else {}
    for batch in StreamLoader(stream, **workers):
        states = batch["aux_states"].float().nan_to_num(posinf=0, neginf=0).clamp(-1, 1)
        (model(states) * batch["loss_mask"].unsqueeze(-1)).mean().backward()
        seen.append(",".join(map(str, batch["samples"].tolist())))
    Path(directory, f"{rank}.txt").write_text("\n".join(seen))
    dist.destroy_process_group()


def test_ranks_of_a_real_process_group_make_the_same_steps(many: Store, tmp_path: Path) -> None:
    # A rank that made a step more would wait for the others' gradients for ever.
    # The ranks are forked off a process that has imported all of torch that they need, once.
    multiprocessing.set_forkserver_preload(["torch._dynamo", __name__])
    arguments = (str(many.path), str(tmp_path))
    start_processes(train, arguments, nprocs=RANKS, start_method="forkserver")  # type: ignore[no-untyped-call]

    seen = [(tmp_path / f"{rank}.txt").read_text().splitlines() for rank in range(RANKS)]
    whole = Eagle3Stream(many.path, pack_rows=60, seed=5, rank=0, ranks=RANKS)
    samples = sorted(int(s) for share in seen for step in share for s in step.split(","))
    assert len(whole.plan()) % RANKS, "the tail must need padding"
    assert [len(share) for share in seen] == [len(whole)] * RANKS
    assert samples == sorted([*range(2, len(many)), *whole.repeated_samples()])
