"""The reference trainer: its training-time test, its losses, and its decoding, on a tiny model."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
import transformers
from torch.nn import functional
from typing_extensions import override

from extraction.engines.transformers_model import TransformersEngine
from hsstore.create import LayoutOptions, create_store
from hsstore.dataset import TokenizedDataset, TokenizedSample
from hsstore.loaders import Eagle3Dataset, Eagle3Stream, eagle3_collate
from hsstore.spec import Model, Norm
from hsstore.store import Store
from hsstore.testing.stores import make_store
from hsstore.writer import BlockWriter
from tools.eagle3.chain import Amount
from tools.eagle3.decoding import CHAIN, Draft, Memory, decode_plainly, decode_with_draft
from tools.eagle3.head import DraftHead, Shape
from tools.eagle3.start import channel_scale, pairs, start_by_ridge
from tools.eagle3.target import TargetModel
from tools.eagle3.training import Recipe, Target, drafted_losses, train
from tools.train_eagle3 import QUICK, Size, held_out_prompts, main, mean_loss, run

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

HIDDEN, VOCABULARY, DRAFT_VOCABULARY = 192, 320, 64
LAYERS = (0, 2, 4)
NOT_SUPERVISED = 15
"""A held-out sample."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        hidden_size=HIDDEN,
        intermediate_size=256,
        num_hidden_layers=6,
        num_attention_heads=3,
        num_key_value_heads=1,
        vocab_size=VOCABULARY,
        max_position_embeddings=256,
        eos_token_id=VOCABULARY - 1,
        initializer_range=0.2,
    )
    path = tmp_path_factory.mktemp("target")
    transformers.LlamaForCausalLM(config).save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def store(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Hold the states of short random samples, of which the last ones are held out."""
    generator = np.random.default_rng(0)
    samples = [_sample(generator, index) for index in range(16)]
    path = tmp_path_factory.mktemp("states") / "states.zarr"
    about = Model(
        id="tiny", capture_hash="0", num_layers=6, hidden=HIDDEN, layers=LAYERS,
        final="post-norm", norm=Norm(epsilon=1e-6), dtype="float32",
    )  # fmt: skip
    store = create_store(
        path,
        TokenizedDataset.from_samples(samples),
        about,
        norm_weight=np.ones(HIDDEN, np.float32),
        options=LayoutOptions(chunk_rows=8, shard_rows=4096, span_samples=100),
    )
    engine = TransformersEngine(model, layers=LAYERS, dtype="float32")
    with ThreadPoolExecutor(1) as encoders:
        block = store.layout.block(0)
        writer = BlockWriter(path, store.layout, store.codec, block, run="test", encoders=encoders)
        for at, sample in enumerate(samples):
            states = engine.capture(sample.input_ids, predict=False, progress=lambda: None)
            writer.append(at, states.hidden.view(np.uint32))
        store.commit(writer, {}, lambda: None)
    return path


def _sample(generator: np.random.Generator, index: int) -> TokenizedSample:
    tokens = int(generator.integers(12, 30))
    supervised = np.arange(tokens) >= 5
    return TokenizedSample(
        sample_id=f"s{index}",
        input_ids=generator.integers(0, DRAFT_VOCABULARY, tokens, dtype=np.int32),
        loss_mask=(supervised & (index != NOT_SUPERVISED)).astype(np.uint8),
        split="heldout" if index >= 12 else "train",
        metadata={},
    )


def _head() -> DraftHead:
    torch.manual_seed(1)
    shape = Shape(HIDDEN, 3, DRAFT_VOCABULARY, feed_forward=64)
    head = DraftHead(shape, torch.ones(3 * HIDDEN), torch.randn(VOCABULARY, HIDDEN))
    for weight in head.norms.parameters():
        torch.nn.init.uniform_(weight, 0.5, 1.5)
    with torch.no_grad():
        for part in (head.value, head.attention_out, head.down):
            part.weight.mul_(20)  # else a row says what its state was before the layer
    return head


@torch.inference_mode()
def test_the_training_time_test_drafts_what_the_chain_drafts() -> None:
    head, rows = _head(), 9
    draft = Draft(head, torch.full((DRAFT_VOCABULARY,), 7))
    aux, tokens = torch.randn(rows + CHAIN, 3 * HIDDEN), torch.randint(VOCABULARY, (rows,)).tolist()
    memory = Memory()
    for some in (slice(0, 4), slice(4, 5), slice(5, rows)):  # as rounds of a decoding
        draft.take(memory, aux[some], tokens[some])

    drafted = draft.chain(memory, CHAIN)

    # The rows behind hold the drafted tokens, and states that nobody may look at.
    line = torch.tensor([tokens + drafted])
    unrolled = list(head.unroll(aux[None], line, CHAIN))
    again = [int(head.logits(state[0, rows - 1]).argmax()) + 7 for state in unrolled]
    assert again == drafted
    assert len(set(drafted)) > 1


def test_the_losses_are_those_of_each_row_by_itself(store: Path) -> None:
    head = _head()
    target = Target(torch.randn(DRAFT_VOCABULARY, HIDDEN), torch.arange(VOCABULARY) % 3 > 0)
    dataset = Eagle3Dataset(store)
    items = [dataset[index] for index in (0, 1, 2)]

    losses = drafted_losses(head, target, eagle3_collate(items), 3)

    for step, loss in enumerate(losses):
        each = []
        for item in items:
            ids, count = item["input_ids"], len(item["input_ids"])
            *_, state = head.unroll(item["aux_states"][None, :-1], ids[None, 1:], step + 1)
            for t in range(count - 2 - step):
                at = t + 1 + step  # the token that the row is at; the one behind is drafted
                if item["loss_mask"][at] and target.in_draft[ids[at + 1]]:
                    wanted = (target.rows @ item["final_state"][at]).softmax(-1)
                    said = head.logits(state[0, t]).log_softmax(-1)
                    each.append(-(wanted * said).sum())
        assert torch.allclose(loss.total, torch.stack(each).sum(), rtol=1e-4)
        assert loss.rows == len(each)


@torch.no_grad()
def test_the_start_is_the_regression_from_the_layers_to_the_next_final_state(store: Path) -> None:
    dataset, head = Eagle3Dataset(store), _head()
    aux, final = pairs([eagle3_collate([dataset[index] for index in range(8)])])
    head.scale.copy_(channel_scale(aux))

    explained = start_by_ridge(head, aux, final)

    left = (head.features(aux) - final).square().sum() / (final - final.mean(0)).square().sum()
    assert len(aux) == sum(len(dataset[index]["input_ids"]) - 4 for index in range(8))
    assert 0.05 < explained <= 1
    assert float(1 - left) == pytest.approx(explained, abs=0.05)  # `features` clamps nothing


def test_training_lowers_the_loss(store: Path) -> None:
    head, target = _head(), Target(torch.randn(64, HIDDEN), torch.arange(VOCABULARY) < 64)
    stream = Eagle3Stream(store, batch_size=4, split="train")

    losses = [loss for _, loss in train(head, target, stream, Recipe(45, rate=2e-3, drafted=2))]

    assert len(losses) == 45
    assert np.mean(losses[-3:]) < 0.7 * np.mean(losses[:3])


def test_the_loss_of_a_stream_is_that_of_its_rows_however_they_are_batched(store: Path) -> None:
    head, target = _head(), Target(torch.randn(64, HIDDEN), torch.arange(VOCABULARY) % 3 > 0)

    losses = [
        mean_loss(head, target, Eagle3Stream(store, batch_size=size, split="heldout"))
        for size in (1, 4)
    ]

    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


def test_a_batch_without_a_supervised_row_changes_no_weight(store: Path) -> None:
    head, target = _head(), Target(torch.randn(64, HIDDEN), torch.arange(VOCABULARY) < 0)
    before = [weight.clone() for weight in head.parameters()]

    losses = [*train(head, target, Eagle3Stream(store, batch_size=4), Recipe(2, drafted=2))]

    assert losses == [(0, 0.0), (1, 0.0)]
    assert all(map(torch.equal, head.parameters(), before))


def test_a_sample_without_an_answer_is_no_prompt(store: Path) -> None:
    assert [len(prompt) for prompt in held_out_prompts(Store.open(store))] == [5, 5, 5]


def test_a_store_without_held_out_prompts_is_refused_before_anything_is_fitted(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "store.zarr"
    make_store(path, [4, 5])
    monkeypatch.setattr("tools.train_eagle3.TargetModel", None)

    with pytest.raises(SystemExit, match=r"no split 'heldout': .* there are: "):
        run(path, model, QUICK)


def test_no_store_is_said_without_a_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ["train_eagle3.py", "--store", str(tmp_path / "none.zarr"), "--model", "target"]
    monkeypatch.setattr("sys.argv", arguments)

    with pytest.raises(SystemExit, match="no hsstore store is there"):
        main()


class _Oracle(Draft):
    """Knows what the target will say, but for every so many-th token."""

    def __init__(self, says: Sequence[int], wrong_every: int) -> None:
        self._says = says
        self._wrong_every = wrong_every
        self._given = 0

    @override
    def take(self, memory: Memory, aux: torch.Tensor, following: Sequence[int]) -> None:
        self._given += len(following) if self._given else 1

    @override
    def chain(self, memory: Memory, count: int) -> list[int]:
        ahead = range(self._given, self._given + count)
        return [self._says[at] ^ (at % self._wrong_every == 0) for at in ahead]


@pytest.mark.parametrize(("wrong_every", "rounds"), [(1000, [6, 6, 6]), (3, [3, 3, 3])])
def test_decoding_gives_the_plain_tokens_and_counts_what_was_accepted(
    model: Path, wrong_every: int, rounds: list[int]
) -> None:
    target, prompt = TargetModel(model, LAYERS), [5, 6, 7]
    plain = decode_plainly(target, prompt, 40)
    assert len(plain) == 40

    decoded = decode_with_draft(target, _Oracle(plain, wrong_every), prompt, 30)
    drafted = decode_with_draft(target, Draft(_head(), torch.zeros(64).long()), prompt, 30)

    assert decoded.tokens == plain[:30]
    assert decoded.rounds[:3] == rounds
    assert drafted.tokens == plain[:30]


def test_a_whole_run_ends_with_numbers(
    store: Path, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    size = Size(Amount(0, 0, 0), Recipe(20), DRAFT_VOCABULARY, 3, 8)

    result = run(store, model, size, tmp_path / "draft.pt")

    assert 0 < result.loss_last < result.loss_first
    assert result.acceptance_untrained == pytest.approx(1, abs=0.1)
    assert all(
        1 <= one <= CHAIN + 1 for one in (result.acceptance_start, result.acceptance_trained)
    )
    assert json.loads(json.dumps(asdict(result), allow_nan=False))["steps"] == 20
    assert "equal to plain decoding" in capsys.readouterr().out
    saved = torch.load(tmp_path / "draft.pt", weights_only=True)
    assert functional.linear(torch.zeros(HIDDEN), saved["head"]["head.weight"]).shape == (64,)
