"""Train an EAGLE-3 head from a store, on the CPU, and measure what it is worth when it drafts.

    make eagle3                                              # the whole chain, small
    python tools/train_eagle3.py                             # the same, larger
    python tools/train_eagle3.py --store states.zarr --model DIR --steps 100

Without `--store` the whole chain is run: real prompts, the target's own answers by `hsstore regenerate`,
its states by `hsstore extract`, then the training. Acceptance length is the number of tokens that
a forward of the target gives when a draft is verified: 1 without a draft. It is measured by real greedy
decoding of held-out prompts, whose tokens have to be those of plain decoding. The last line is JSON; that
of a whole chain goes into build/bench.json, too.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from hsstore.errors import InputError
from hsstore.loaders import Eagle3Stream, draft_vocabulary
from hsstore.store import Store
from tools.bench_json import record
from tools.eagle3.chain import Amount, make_store
from tools.eagle3.decoding import Draft, decode_plainly, decode_with_draft
from tools.eagle3.head import DraftHead, Shape
from tools.eagle3.prompts import HELD_OUT
from tools.eagle3.start import channel_scale, pairs, start_by_ridge
from tools.eagle3.target import TargetModel
from tools.eagle3.training import Recipe, Target, drafted_losses, train

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT = Path(__file__).resolve().parent.parent
LINES = 4
"""Samples a step."""
MAX_TOKENS = 256
START_BATCHES = 60
SHOWN_STEPS = 10
"""Losses that are averaged into one, and shown."""


@dataclass(frozen=True, slots=True)
class Size:
    """Of a whole run, in prompts and steps: it takes as long as it takes."""

    amount: Amount
    recipe: Recipe
    vocabulary: int
    decoded_prompts: int
    decoded_tokens: int
    """Of each prompt, at most."""


QUICK = Size(Amount(240, 16, 80), Recipe(110, drafted=2), 4096, 8, 40)
FULL = Size(Amount(1536, 24, 128), Recipe(1000), 8192, 24, 64)


@dataclass(frozen=True, slots=True)
class Result:
    """The last line."""

    loss_first: float
    """Mean cross entropy of the first drafted token on held-out samples, in nats, before the first step."""
    loss_last: float
    """The same behind the last one."""
    acceptance_untrained: float
    """Of a head with random weights."""
    acceptance_start: float
    """Of the start in closed form, before the first step."""
    acceptance_trained: float
    steps: int
    seconds: float


def main() -> int:
    """Run the chain or the training alone, and print the result."""
    options = _parse()
    size = QUICK if options.quick else FULL
    size = replace(
        size,
        recipe=replace(size.recipe, steps=options.steps or size.recipe.steps),
        decoded_prompts=options.decode or size.decoded_prompts,
    )
    began = time.monotonic()
    torch.set_num_threads(options.threads)
    model = options.model or ROOT / "demo/model"
    work = options.work / ("quick" if options.quick else "full")
    cores = len(os.sched_getaffinity(0))
    store = options.store or make_store(work, model, size.amount, cores)
    say(f"store {store} after {time.monotonic() - began:.0f} s")
    try:
        result = run(store, model, size, options.save)
    except InputError as error:
        sys.exit(str(error))
    found = asdict(replace(result, seconds=round(time.monotonic() - began, 1)))
    print(json.dumps(found, allow_nan=False), flush=True)
    if options.store is None:
        record("eagle3_quick" if options.quick else "eagle3", found)
    return 0


def run(store_path: Path, model: Path, size: Size, save: Path | None = None) -> Result:
    """Train on the split `train` of a store, and decode the prompts of its split `heldout`."""
    torch.manual_seed(0)
    store = Store.open(store_path)
    if store.spec.model.final != "post-norm":
        sys.exit(f"{store_path}: the final states are not those behind the norm")
    prompts = held_out_prompts(store)[: size.decoded_prompts]
    target_model = TargetModel(model, store.spec.model.layers)
    vocabulary = draft_vocabulary(
        store, size.vocabulary, len(target_model.embeddings), split="train"
    )
    rows = target_model.output_rows[vocabulary.t2d]
    stream = Eagle3Stream(store_path, batch_size=LINES, max_length=MAX_TOKENS, split="train")
    aux, final = pairs(islice(stream, START_BATCHES))
    say(f"{len(stream)} batches an epoch; start from {len(aux):,} rows")

    shape = Shape(final.shape[1], len(store.spec.model.layers), size.vocabulary)
    head = DraftHead(shape, channel_scale(aux), target_model.embeddings)
    judge = Judge(target_model, prompts, size.decoded_tokens)
    draft = Draft(head, vocabulary.d2t)
    untrained = judge.acceptance(draft, "random weights")
    with torch.no_grad():
        head.head.weight.copy_(rows)
    explained = start_by_ridge(head, aux, final)
    start = judge.acceptance(draft, f"start in closed form, R2 {explained:.2f}")
    target = Target(rows, vocabulary.t2d)
    held_out = Eagle3Stream(store_path, batch_size=LINES, max_length=MAX_TOKENS, split=HELD_OUT)
    first = mean_loss(head, target, held_out)
    losses = []
    for step, loss in train(head, target, stream, size.recipe):
        losses.append(loss)
        if (step + 1) % SHOWN_STEPS == 0:
            say(f"step {step + 1:4} training loss {np.mean(losses[-SHOWN_STEPS:]):.3f}")
    last = mean_loss(head, target, held_out)
    say(f"held-out loss {first:.3f} before, {last:.3f} after")
    trained = judge.acceptance(draft, "trained")
    if save is not None:
        torch.save({"head": head.state_dict(), **vocabulary._asdict()}, save)
    return Result(
        loss_first=round(first, 3),
        loss_last=round(last, 3),
        acceptance_untrained=round(untrained, 3),
        acceptance_start=round(start, 3),
        acceptance_trained=round(trained, 3),
        steps=len(losses),
        seconds=0.0,
    )


@torch.no_grad()
def mean_loss(head: DraftHead, target: Target, stream: Eagle3Stream) -> float:
    """Return the mean loss of the first drafted token, over all rows of a stream."""
    losses = [drafted_losses(head, target, batch, 1)[0] for batch in stream]
    rows = sum(loss.rows for loss in losses)
    if not rows:
        sys.exit(f"split {HELD_OUT!r} has no supervised token that the draft vocabulary has")
    return sum(float(loss.total) for loss in losses) / rows


def held_out_prompts(store: Store) -> list[list[int]]:
    """Return the tokens in front of the first answer of each held-out sample that has both."""
    names = store.spec.dataset.split_names
    if HELD_OUT not in names:
        there = ", ".join(names)
        sys.exit(f"{store.path}: no split {HELD_OUT!r}: the prompts to decode; there are: {there}")
    samples = np.flatnonzero(store.plan_array("split") == names.index(HELD_OUT))
    prompts = []
    for sample in samples.tolist():
        answered = int(store.loss_mask(sample).argmax())  # 0 where nothing is supervised, too
        if answered:
            prompts.append(store.input_ids(sample)[:answered].tolist())
    if not prompts:
        sys.exit(f"{store.path}: no sample of split {HELD_OUT!r} has a prompt and an answer")
    return prompts


class Judge:
    """Decodes held-out prompts with a draft, and insists on the tokens of plain decoding."""

    def __init__(self, target: TargetModel, prompts: Sequence[list[int]], new_tokens: int) -> None:
        self._target = target
        self._prompts = prompts
        self._new_tokens = new_tokens
        self._plain = [decode_plainly(target, prompt, new_tokens) for prompt in prompts]

    def acceptance(self, draft: Draft, name: str) -> float:
        """Return the tokens that a round gives, on average."""
        rounds: list[int] = []
        for prompt, plain in zip(self._prompts, self._plain, strict=True):
            decoded = decode_with_draft(self._target, draft, prompt, self._new_tokens)
            if decoded.tokens != plain:
                sys.exit(f"with the draft the target said {decoded.tokens}, without it {plain}")
            rounds += decoded.rounds
        if not rounds:
            sys.exit("nothing was drafted: each held-out answer ends with its first token")
        mean = float(np.mean(rounds))
        say(f"{name}: {mean:.3f} tokens a round, {len(rounds)} rounds, equal to plain decoding")
        return mean


def say(text: str) -> None:
    """Print at once: the run takes minutes."""
    print(text, flush=True)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--quick", action="store_true", help="small: meant for 12 minutes on two cores"
    )
    parser.add_argument(
        "--store", type=Path, help="train on this store; nothing is asked or extracted"
    )
    parser.add_argument("--model", type=Path, help="the target's directory [default: demo/model]")
    parser.add_argument(
        "--work", type=Path, default=ROOT / "build/eagle3", help="what is kept between runs"
    )
    parser.add_argument("--steps", type=int, help="another number of training steps")
    parser.add_argument("--decode", type=int, help="another number of held-out prompts to decode")
    parser.add_argument(
        "--threads", type=int, default=1, help="of the training; more only on idle cores"
    )
    parser.add_argument("--save", type=Path, help="file for the head and its vocabulary")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
