"""Streams: the same batches for all ranks and workers together, from wherever they go on."""

from __future__ import annotations

import json
import logging
import pickle
import shutil
import sys
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

from hsstore.errors import InputError, NotExtractedError
from hsstore.loaders import Eagle3Stream, StreamLoader
from hsstore.testing.stores import commit_block, make_store
from tests.loaders.batches import assert_equal, served

if TYPE_CHECKING:
    from pathlib import Path

    from hsstore.store import Store

PACKED: dict[str, Any] = {"pack_rows": 60, "buffer_samples": 12, "seed": 5}


def all_but(store: Store, *left_out: int) -> list[int]:
    return sorted(set(range(len(store))) - set(left_out))


@pytest.mark.parametrize("options", [PACKED, {"batch_size": 3}])
def test_any_number_of_ranks_serves_the_same_batches(many: Store, options: dict[str, Any]) -> None:
    whole = list(Eagle3Stream(many.path, **options))

    shares = [list(Eagle3Stream(many.path, **options, rank=r, ranks=3)) for r in range(3)]

    assert len({len(share) for share in shares}) == 1
    assert sorted(served(whole)) == all_but(many, 0, 1)
    for number, batch in enumerate(whole):
        assert_equal(batch, shares[number % 3][number // 3])


def test_what_is_served_twice_is_told(many: Store, caplog: pytest.LogCaptureFixture) -> None:
    streams = [Eagle3Stream(many.path, **PACKED, rank=r, ranks=4) for r in range(4)]
    twice = streams[0].repeated_samples()

    with caplog.at_level(logging.INFO, "hsstore.loaders"):
        batches = [batch for stream in streams for batch in stream]

    assert twice
    assert sorted(served(batches)) == sorted(all_but(many, 0, 1) + twice)
    assert f"epoch 0: {len(twice)} samples are served twice, so that all 4 ranks" in caplog.text


def test_what_a_line_has_no_room_for_is_told(many: Store, caplog: pytest.LogCaptureFixture) -> None:
    longer = int((many.length - 1 > 20).sum())

    batches = list(Eagle3Stream(many.path, pack_rows=20))

    assert longer
    assert sorted(served(batches)) == all_but(many, 0, 1)
    assert caplog.messages == [
        f"{longer} of {len(many) - 2} samples are longer than a line and are cut to pack_rows=20"
    ]


def test_what_max_length_cuts_was_asked_for(many: Store, caplog: pytest.LogCaptureFixture) -> None:
    list(Eagle3Stream(many.path, pack_rows=20, max_length=21))
    list(Eagle3Stream(many.path, batch_size=3, max_length=5))

    assert not caplog.messages


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"tail": "dorp"}, "tail is 'dorp'; it is one of pad, drop, uneven"),
        ({"tail": None}, "tail is None; it is one of"),
        ({"dtype": torch.float64}, "dtype is torch.float64; states can be torch's bfloat16, "),
        ({"dtype": "float32"}, "dtype is 'float32'; states can be"),
        ({"seed": 1 << 64}, "it must be below 2\\*\\*64"),
    ],
)
def test_an_option_that_means_nothing_is_refused_when_the_stream_is_made(
    many: Store, option: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        Eagle3Stream(many.path, batch_size=2, **option)


def test_a_tail_can_be_dropped_or_uneven(many: Store) -> None:
    batches = len(list(Eagle3Stream(many.path, **PACKED)))
    assert batches % 4

    for tail in ("drop", "uneven"):
        steps = [
            len(Eagle3Stream(many.path, **PACKED, rank=r, ranks=4, tail=tail)) for r in range(4)
        ]
        assert sum(steps) == (batches if tail == "uneven" else batches // 4 * 4)


def test_epochs_differ_and_each_is_always_the_same(many: Store) -> None:
    stream = Eagle3Stream(many.path, **PACKED)
    first, again = served(list(stream)), served(list(stream))
    stream.set_epoch(1)

    other = served(list(stream))

    assert first == again
    assert first != other
    assert sorted(first) == sorted(other)


@pytest.mark.parametrize("then", [1, 2, 5])
def test_a_state_goes_on_with_what_no_rank_has_seen(many: Store, then: int) -> None:
    before, states = [], []
    for rank in range(3):
        stream = Eagle3Stream(many.path, **PACKED, rank=rank, ranks=3)
        stream.set_epoch(7)
        batches = iter(stream)
        before += [next(batches), next(batches)]
        states.append(json.loads(json.dumps(stream.state_dict())))

    after = []
    for rank in range(then):
        stream = Eagle3Stream(many.path, **PACKED, rank=rank, ranks=then, tail="uneven")
        stream.load_state_dict(states[rank % 3])
        assert stream.epoch == 7
        after += list(stream)

    assert sorted(served(before) + served(after)) == all_but(many, 0, 1)


def test_an_iteration_that_goes_on_is_followed_by_a_whole_one(many: Store) -> None:
    stream, resumed = Eagle3Stream(many.path, **PACKED), Eagle3Stream(many.path, **PACKED)
    whole = served(list(stream))
    batches = iter(stream)
    seen = served([next(batches), next(batches)])
    resumed.load_state_dict(stream.state_dict())

    assert seen + served(list(resumed)) == whole
    assert served(list(resumed)) == whole


def test_a_state_at_the_end_of_an_epoch_leaves_nothing_of_it(many: Store) -> None:
    stream, resumed = Eagle3Stream(many.path, **PACKED), Eagle3Stream(many.path, **PACKED)
    list(stream)
    resumed.load_state_dict(stream.state_dict())

    assert len(resumed) == 0
    assert list(resumed) == []


def test_a_state_brings_its_samples_though_the_store_has_grown(tmp_path: Path) -> None:
    store = make_store(tmp_path / "s.zarr", [4, 5, 6, 7, 8])
    commit_block(store, 0, [0, 2])
    stream = Eagle3Stream(store.path, batch_size=1)
    batches = iter(stream)
    seen = served([next(batches)])
    for block in range(store.layout.blocks):
        samples = [s for s in store.layout.block(block).samples if s not in (0, 2)]
        commit_block(store, block, samples)

    resumed = Eagle3Stream(store.path, batch_size=1)
    assert len(resumed) == 5
    resumed.load_state_dict(stream.state_dict())

    assert sorted(seen + served(list(resumed))) == [0, 2]


def test_a_state_of_another_stream_is_refused_by_name(many: Store, store: Store) -> None:
    state = Eagle3Stream(many.path, **PACKED).state_dict()

    with pytest.raises(InputError, match="pack_rows=60; this one has 61"):
        Eagle3Stream(many.path, **PACKED | {"pack_rows": 61}).load_state_dict(state)
    with pytest.raises(InputError, match="the state is of a stream with store="):
        Eagle3Stream(store.path, **PACKED).load_state_dict(state)
    with pytest.raises(InputError, match="no state of a stream: order, samples"):
        Eagle3Stream(many.path, **PACKED).load_state_dict({"step": 1})  # type: ignore[typeddict-item]


def test_opening_and_planning_reads_no_payload_and_the_same_on_every_rank(
    many: Store, tmp_path: Path
) -> None:
    copy = shutil.copytree(many.path, tmp_path / "copy.zarr")
    for shard in (copy / "hidden_states").glob("c.*"):
        shard.unlink()
    opened: list[str] = []
    noting = True

    def note(event: str, arguments: tuple[Any, ...]) -> None:
        if noting and event == "open" and str(copy) in str(arguments[0]):
            opened.append(str(arguments[0]))

    sys.addaudithook(note)
    by_rank = []
    for rank in (2, 0, 1, 2):  # the first one fills caches of this process
        opened.clear()
        stream = Eagle3Stream(copy, **PACKED, rank=rank, ranks=3)
        assert len(stream) > 0
        assert stream.largest_batch_bytes() > 0
        by_rank.append(sorted(opened))
    noting = False

    assert by_rank[1]
    assert by_rank[1] == by_rank[2] == by_rank[3]


def test_a_sample_that_is_withdrawn_is_not_served(many: Store, tmp_path: Path) -> None:
    copy = shutil.copytree(many.path, tmp_path / "copy.zarr")
    stream = Eagle3Stream(copy, batch_size=1, shuffle=False)
    for span in (copy / "complete").glob("c.*"):
        span.unlink()

    with pytest.raises(NotExtractedError, match=r"sample 2 .* is pending"):
        next(iter(stream))


def test_another_store_under_the_same_path_is_noticed(many: Store, store: Store) -> None:
    stream = Eagle3Stream(many.path, batch_size=1)
    moved = pickle.loads(pickle.dumps(stream))
    object.__setattr__(moved.reader, "path", store.path)

    with pytest.raises(InputError, match="is not the store that the loader was made for"):
        next(iter(moved))


def test_no_sample_of_two_tokens_is_said(tmp_path: Path) -> None:
    store = make_store(tmp_path / "s.zarr", [1, 5])
    commit_block(store, 0, [0])

    with pytest.raises(InputError, match=r"no sample to train on \(1 chosen"):
        len(Eagle3Stream(store.path, batch_size=1))


# --- worker processes -------------------------------------------------------------------------


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_worker_processes_serve_the_same_in_the_same_order(many: Store, context: str) -> None:
    expected = list(Eagle3Stream(many.path, **PACKED))
    loader = StreamLoader(
        Eagle3Stream(many.path, **PACKED),
        num_workers=2,
        multiprocessing_context=context,
        persistent_workers=True,
    )

    batches = list(loader)
    loader.set_epoch(1)
    other = served(list(loader))
    loader.set_epoch(0)
    again = list(loader)

    for batch, second, mine in zip(batches, again, expected, strict=True):
        assert_equal(batch, mine)
        assert_equal(second, mine)
    assert other != served(expected)
    assert sorted(other) == sorted(served(expected))


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
def test_more_workers_than_batches(tmp_path: Path) -> None:
    store = make_store(tmp_path / "s.zarr", [4, 5])
    commit_block(store, 0, [0, 1])

    loader = StreamLoader(Eagle3Stream(store.path, batch_size=1), num_workers=4)

    assert len(loader) == 2
    assert sorted(served(list(loader))) == [0, 1]


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
@pytest.mark.parametrize(("workers", "then"), [(2, 0), (0, 2), (2, 3)])
def test_a_loader_goes_on_with_another_number_of_workers(
    many: Store, workers: int, then: int
) -> None:
    whole = served(list(Eagle3Stream(many.path, **PACKED)))
    loader = StreamLoader(Eagle3Stream(many.path, **PACKED), num_workers=workers)
    batches = iter(loader)
    seen = served([next(batches), next(batches), next(batches)])
    resumed = StreamLoader(Eagle3Stream(many.path, **PACKED), num_workers=then)
    resumed.load_state_dict(loader.state_dict())

    assert seen + served(list(resumed)) == whole
    assert served(list(resumed)) == whole


@pytest.mark.filterwarnings(
    "ignore:'set_vital' is deprecated",
    # Resumed, torchdata counts what was served before; the length of a stream is what is left.
    "ignore:Length of IterableDataset",
)
@pytest.mark.parametrize("workers", [0, 1, 2])
def test_torchdatas_loader_saves_and_restores_a_stream(many: Store, workers: int) -> None:
    def make() -> StatefulDataLoader[Any]:
        stream = Eagle3Stream(many.path, **PACKED)
        return StatefulDataLoader(stream, batch_size=None, num_workers=workers)

    whole = served(list(Eagle3Stream(many.path, **PACKED)))
    loader = make()
    batches = iter(loader)
    seen = served([next(batches), next(batches), next(batches)])
    resumed = make()
    resumed.load_state_dict(loader.state_dict())

    assert seen + served(list(resumed)) == whole
    assert served(list(resumed)) == whole


def test_a_workers_own_state_is_refused_elsewhere(many: Store) -> None:
    stream = Eagle3Stream(many.path, **PACKED)
    state = stream.state_dict() | {"taken": 2, "share": (0, 1, 1, 2)}

    with pytest.raises(InputError, match="use StreamLoader, whose states fit any"):
        stream.load_state_dict(state)


@pytest.mark.parametrize(
    ("kind", "options"),
    [(DataLoader, {"batch_size": None}), (StreamLoader, {}), (StreamLoader, {"num_workers": 2})],
)
def test_every_tensor_of_a_batch_is_pinned(
    many: Store, monkeypatch: pytest.MonkeyPatch, kind: Any, options: dict[str, Any]
) -> None:
    """Where there is no accelerator torch is told that there is one, and what it would pin is noted."""
    pinned: set[int] = set()
    if not torch.cuda.is_available():

        def pin(tensor: torch.Tensor) -> torch.Tensor:
            copy = tensor.clone()
            pinned.add(copy.data_ptr())
            return copy

        monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
        monkeypatch.setattr(torch.accelerator, "current_device_index", lambda: 0)
        monkeypatch.setattr(torch.accelerator, "set_device_index", lambda _index: None)
        monkeypatch.setattr(torch.Tensor, "pin_memory", pin)
        monkeypatch.setattr(torch.Tensor, "is_pinned", lambda one: one.data_ptr() in pinned)
    stream = Eagle3Stream(many.path, **PACKED)

    batches = list(kind(stream, **options, pin_memory=True))

    for batch, mine in zip(batches, Eagle3Stream(many.path, **PACKED), strict=True):
        assert_equal(batch, mine)
        assert all(tensor.is_pinned() for tensor in dict(batch).values())


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
def test_workers_that_cannot_hold_a_batch_each_are_refused(many: Store) -> None:
    stream = Eagle3Stream(many.path, **PACKED)
    nbytes = stream.largest_batch_bytes()

    with pytest.raises(InputError, match=r"3 workers hold a batch each, of up to [\d,]+ bytes"):
        StreamLoader(stream, num_workers=3, prefetch_bytes=3 * nbytes - 1)
    assert StreamLoader(stream, num_workers=3, prefetch_bytes=7 * nbytes).prefetch_factor == 2
