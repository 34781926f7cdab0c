"""The life of a store: a state machine against a dict, and what a sample is."""

from __future__ import annotations

import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings, strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)
from typing_extensions import override

import hsstore
from hsstore.arrays import Arrays
from hsstore.create import Golden, LayoutOptions, create_store
from hsstore.errors import NotExtractedError, RefusedError
from hsstore.files import PARTIAL_SUFFIX
from hsstore.shard.reader import ShardReader
from hsstore.spec import FailureReason
from hsstore.store import Store
from hsstore.testing.invariants import (
    check_same_data,
    check_set_bits_read_back,
    check_unset_bits_raise,
    complete_samples,
)
from hsstore.testing.stores import (
    commit_block,
    fill_store,
    make_dataset,
    make_model,
    make_store,
    payload,
    start_block,
)
from hsstore.writer import BlockWriter

REASONS = [reason for reason in FailureReason if reason]
LENGTHS = [3, 9, 40, 1, 16, 5]


class _StoreMachine(RuleBasedStateMachine):
    """A store written by runs that stop anywhere, against the sets of what they promised."""

    @initialize(lengths=st.lists(st.integers(1, 20), min_size=1, max_size=8))
    def create(self, lengths: list[int]) -> None:
        self.directory = tempfile.TemporaryDirectory(dir="/dev/shm")
        self.encoders = ThreadPoolExecutor(1)
        self.store = make_store(Path(self.directory.name) / "s.zarr", lengths)
        self.reader = Store.open(self.store.path)
        """Stays open, with what it has cached, while the store changes under it."""
        self.complete: set[int] = set()
        self.failed: dict[int, FailureReason] = {}
        self.runs = 0

    @override
    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.final_data_is_that_of_an_uninterrupted_store()
            self.encoders.shutdown()
            self.directory.cleanup()

    def pending(self, block: int) -> list[int]:
        done = self.complete | self.failed.keys()
        return [sample for sample in self.store.layout.block(block).samples if sample not in done]

    def draw_work(self, data: st.DataObject) -> tuple[int, list[int]]:
        """Draw a block and some of its pending samples, in any order."""
        block = data.draw(st.integers(0, self.store.layout.blocks - 1))
        pending = self.pending(block)
        some = st.lists(st.sampled_from(pending), unique=True) if pending else st.just([])
        self.runs += 1
        return block, data.draw(some)

    @rule(data=st.data())
    def commit(self, data: st.DataObject) -> None:
        block, taken = self.draw_work(data)
        given_up = data.draw(st.dictionaries(st.sampled_from(taken), st.sampled_from(REASONS))) \
            if taken else {}  # fmt: skip
        written = [sample for sample in taken if sample not in given_up]

        commit_block(self.store, block, written, given_up, run=f"run-{self.runs}")

        self.complete.update(written)
        self.failed.update(given_up)

    @rule(data=st.data())
    def stop_before_the_bits(self, data: st.DataObject) -> None:
        """Die after the shards got their names: payload without bits."""
        block, samples = self.draw_work(data)
        writer = start_block(self.store, block, samples, self.encoders, f"run-{self.runs}")
        writer.seal()
        writer.publish()

    @rule(data=st.data())
    def stop_before_the_shard(self, data: st.DataObject) -> None:
        """Die before the rename: the partial file stays behind."""
        block, samples = self.draw_work(data)
        start_block(self.store, block, samples, self.encoders, f"run-{self.runs}").seal()

    @rule(data=st.data())
    def give_the_block_up(self, data: st.DataObject) -> None:
        block, samples = self.draw_work(data)
        run = f"run-{self.runs}"
        start_block(self.store, block, samples, self.encoders, run).discard()
        assert not list(self.store.path.glob(f"hidden_states/*.{run}{PARTIAL_SUFFIX}"))

    @precondition(lambda self: self.failed)
    @rule(data=st.data())
    def retry_failed(self, data: st.DataObject) -> None:
        again = data.draw(st.lists(st.sampled_from(sorted(self.failed)), unique=True))

        self.store.reset_failed(np.array(again, np.int64))

        for sample in again:
            del self.failed[sample]

    @rule()
    def open_anew(self) -> None:
        self.store = hsstore.open(self.store.path)

    @invariant()
    def the_arrays_say_what_was_promised(self) -> None:
        state = self.store.completion()
        assert complete_samples(self.store) == self.complete
        failed = {index: int(state.failed[index]) for index in np.flatnonzero(state.failed)}
        assert failed == self.failed

    @invariant()
    def set_bits_read_back_in_every_reader(self) -> None:
        check_set_bits_read_back(self.store)
        check_set_bits_read_back(self.reader)

    @invariant()
    def unset_bits_are_never_read(self) -> None:
        check_unset_bits_raise(self.reader)

    def final_data_is_that_of_an_uninterrupted_store(self) -> None:
        self.store.reset_failed(np.array(sorted(self.failed), np.int64))
        fill_store(self.store)
        uninterrupted = make_store(Path(self.directory.name) / "u.zarr", self.store.length.tolist())
        fill_store(uninterrupted)
        check_same_data(self.store, uninterrupted)
        assert self.store.completion().complete.all()


TestStoreMachine = _StoreMachine.TestCase
TestStoreMachine.settings = settings(max_examples=12, stateful_step_count=8, deadline=None)


def test_a_sample_comes_back_with_everything_its_dataset_gave(directory: Path) -> None:
    store = make_store(directory / "s.zarr", LENGTHS)
    fill_store(store)
    dataset = make_dataset(LENGTHS)

    start = 0
    for index, tokens in enumerate(LENGTHS):
        sample = store[index]
        assert (sample.index, sample.sample_id) == (index, f"chat/{index}/ä")
        np.testing.assert_array_equal(sample.input_ids, dataset.input_ids[start : start + tokens])
        np.testing.assert_array_equal(sample.loss_mask, dataset.loss_mask[start : start + tokens])
        assert store.split(index) == ("test" if index % 5 == 4 else "train")
        metadata = {"index": index, "text": "größer"} if index % 2 else {}
        assert store.metadata(index) == metadata
        start += tokens


def test_indices_count_from_the_end_and_end_at_the_length(directory: Path) -> None:
    store = make_store(directory / "s.zarr", LENGTHS)
    fill_store(store)

    assert len(store) == 6
    assert store[-1].index == 5
    with pytest.raises(IndexError):
        store[6]


def test_a_failed_sample_raises_with_its_id_and_reason(directory: Path) -> None:
    store = make_store(directory / "s.zarr", LENGTHS)
    commit_block(store, 0, [1], {0: FailureReason.NOT_FINITE})

    with pytest.raises(NotExtractedError, match=r"sample 0 \(chat/0/ä\) failed: not-finite"):
        store[0]


def test_a_reason_that_a_later_version_added_still_has_a_name(directory: Path) -> None:
    store = make_store(directory / "s.zarr", LENGTHS)

    assert store.spec.failure_label(FailureReason.REFUSED) == "refused"
    assert store.spec.failure_label(99) == "reason-99"


def test_a_block_is_continued_from_what_another_process_committed(directory: Path) -> None:
    store = make_store(directory / "s.zarr", [3, 3, 3])
    commit_block(store, 0, [0])
    assert len(store[0].input_ids) == 3  # the index of this shard is cached now
    commit_block(Store.open(store.path), 0, [1])

    commit_block(store, 0, [2])

    assert complete_samples(store) == {0, 1, 2}
    check_set_bits_read_back(Store.open(store.path))


def test_only_the_samples_asked_for_are_retried(directory: Path) -> None:
    store = make_store(directory / "s.zarr", [1] * 9)  # two spans
    reasons = dict.fromkeys(range(4), FailureReason.REFUSED)
    commit_block(store, 0, [], reasons)
    commit_block(store, 2, [], {6: FailureReason.BAD_DATA, 7: FailureReason.BAD_DATA})

    store.reset_failed(np.array([1, 7]))

    assert np.flatnonzero(store.completion().failed).tolist() == [0, 2, 3, 6]


def test_the_chunks_of_a_sample_are_contiguous_whether_written_or_copied(
    directory: Path, encoders: ThreadPoolExecutor
) -> None:
    sizes = LayoutOptions(chunk_rows=4, shard_rows=64, span_samples=2)
    store = make_store(directory / "s.zarr", [9, 48], options=sizes)
    commit_block(store, 0, [0])
    block = store.layout.block(0)
    writer = BlockWriter(store.path, store.layout, store.codec, block, run="run", encoders=encoders)

    writer.append(1, payload(store, 1))
    writer.copy([0], store.payload, [9])
    store.commit(writer, {}, lambda: None)

    index = ShardReader(store.path / "hidden_states" / "c.0.0.0", 16).index
    for sample, tokens in enumerate((9, 48)):
        chunks = [place.chunk for place in store.layout.chunks_of(sample, tokens)]
        offsets, sizes_bytes = index[chunks].T
        np.testing.assert_array_equal(offsets[1:], (offsets + sizes_bytes)[:-1])
    check_set_bits_read_back(store)


@pytest.mark.parametrize("looks", [0, 1, 2], ids=["shards", "digests", "bits"])
def test_a_run_that_lost_its_claim_writes_nothing_more(directory: Path, looks: int) -> None:
    store = make_store(directory / "s.zarr", LENGTHS)
    left = iter(range(looks))

    def lost() -> None:
        if next(left, None) is None:
            raise RefusedError("span 0 was taken over")

    with ThreadPoolExecutor(1) as encoders:
        writer = start_block(store, 0, [0, 1], encoders, "run")
        with pytest.raises(RefusedError):
            store.commit(writer, {}, lost)
        writer.discard()

    assert complete_samples(store) == set()
    assert len(list(store.path.glob("hidden_states/c.*"))) == (looks > 0)
    assert len(list(store.path.glob("digest/c.*"))) == (looks > 1)


def test_a_block_that_lacks_what_was_committed_meanwhile_is_refused(directory: Path) -> None:
    """Where a network file system hid a commit, or the claim was taken over: else the bit would lose its states."""
    store = make_store(directory / "s.zarr", LENGTHS)
    with ThreadPoolExecutor(1) as encoders:
        late = start_block(store, 0, [0], encoders, "late")
        commit_block(Store.open(store.path), 0, [1])

        with pytest.raises(RefusedError, match="sample 1 was committed by somebody else"):
            store.commit(late, {}, lambda: None)
        late.discard()

    assert complete_samples(store) == {1}
    check_set_bits_read_back(store)
    assert not list(store.path.glob("hidden_states/*.partial"))


def test_metadata_of_many_megabytes_is_read_back_by_sample(directory: Path) -> None:
    dataset = make_dataset([1, 1, 1])
    texts = [b'{"a":"' + b"x" * (1 << 20) + b'"}', b"", b'{"b":1}']
    flat = np.frombuffer(b"".join(texts), np.uint8)
    ends = np.cumsum([len(text) for text in texts])
    fields = {name: getattr(dataset, name) for name in dataset.__slots__}
    dataset = type(dataset)(**fields | {"metadata": flat, "metadata_end": ends})

    store = create_store(
        directory / "s.zarr", dataset, make_model(), norm_weight=np.ones(16, np.float32)
    )

    assert store.metadata(0) == {"a": "x" * (1 << 20)}
    assert store.metadata(1) == {}
    assert store.metadata(2) == {"b": 1}


def test_golden_states_are_stored_with_their_tokens(directory: Path) -> None:
    bits = np.random.default_rng(0).integers(0, 1 << 16, (2, 3, 16), dtype=np.uint16)

    store = create_store(
        directory / "s.zarr",
        make_dataset(LENGTHS),
        make_model(),
        norm_weight=np.ones(16, np.float32),
        golden=Golden((7, 8), bits),
    )

    np.testing.assert_array_equal(store.plan_array("golden").view(np.uint16), bits)
    assert store.spec.golden_input_ids == (7, 8)


def test_arrays_never_elide_a_chunk_of_zeros(directory: Path) -> None:
    store = make_store(directory / "s.zarr", LENGTHS)

    commit_block(store, 0, [], {0: FailureReason.BAD_DATA})

    # Also when every bit is false the bitmap chunk is written: it is the commit point.
    assert (store.path / "complete" / "c.0").stat().st_size == 6 + 4
    assert Arrays.open(store.path).read("complete").tolist() == [False] * 6
