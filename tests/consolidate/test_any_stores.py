"""Whatever the stores and the options: the destination holds what the sources hold, bit by bit."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from hypothesis import given, settings, strategies as st

from hsstore.consolidate import Filter, Options, consolidate
from hsstore.create import LayoutOptions
from hsstore.store import Store
from hsstore.tasks import Where
from hsstore.testing.stores import make_model
from tests.consolidate.parts import Named, check_holds, look, make_part

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hsstore.consolidate.request import Order

SIZES = st.sampled_from(
    [
        LayoutOptions(chunk_rows=4, shard_rows=16, span_samples=6),
        LayoutOptions(chunk_rows=4, shard_rows=16, span_samples=3, codec="max"),
        LayoutOptions(chunk_rows=8, shard_rows=8, span_samples=100, codec="none"),
    ]
)


@st.composite
def parts(draw: st.DrawFn) -> list[tuple[list[Named], set[str], LayoutOptions]]:
    """Draw the samples of each store, which of them are pending, and the store's sizes.

    A name stands for one sample, wherever it occurs.
    """
    count = draw(st.integers(1, 24))
    known = [
        Named(
            f"sample/{number}/ü"[: draw(st.integers(8, 11))] + str(number),
            length=draw(st.sampled_from([1, 2, 3, 4, 5, 7, 9, 18, 40])),
            split=draw(st.sampled_from(["train", "test", "dev"])),
            metadata={"number": number} if number % 3 else {},
        )
        for number in range(count)
    ]
    stores = []
    for _ in range(draw(st.integers(1, 3))):
        samples = draw(st.lists(st.sampled_from(known), min_size=1, unique_by=lambda one: one.name))
        pending = draw(st.sets(st.sampled_from([one.name for one in samples])))
        stores.append((samples, pending, draw(SIZES)))
    return stores


def _expected(
    stores: Sequence[tuple[list[Named], set[str], LayoutOptions]], splits: set[str] | None
) -> list[Named]:
    """Return the samples in dataset order: source by source, each name once, complete ones only."""
    found: dict[str, Named] = {}
    for samples, pending, _ in stores:
        for one in samples:
            if one.name not in pending and (splits is None or one.split in splits):
                found.setdefault(one.name, one)
    return list(found.values())


@settings(max_examples=20, deadline=None)
@given(
    parts(),
    st.sampled_from(["bfloat16", "float32"]),
    st.sampled_from(["dataset", "length", "shuffle"]),
    st.sampled_from([None, {"train"}, {"dev", "train"}]),
    st.sampled_from([None, "fast", "lz4"]),
    st.sampled_from([None, 4, 6]),
    st.sampled_from([None, 16, 64]),
    st.sampled_from([None, 5]),
)
def test_the_destination_holds_what_the_sources_hold(
    stores: list[tuple[list[Named], set[str], LayoutOptions]],
    dtype: str,
    order: Order,
    splits: set[str] | None,
    codec: str | None,
    chunk_rows: int | None,
    shard_rows: int | None,
    span_samples: int | None,
) -> None:
    model = make_model(dtype)  # type: ignore[arg-type]
    known = {one.split for samples, _, _ in stores for one in samples}
    splits = splits if splits and splits <= known else None
    expected = _expected(stores, splits)
    fingerprints = {tuple(one.name for one in samples) for samples, _, _ in stores}
    if not expected or len(fingerprints) < len(stores):
        return  # nothing to write; or one dataset, whose order is tested elsewhere
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="hsstore-test-") as path:
        root = Path(path)
        paths = [root / f"{number}.zarr" for number in range(len(stores))]
        for part, (samples, pending, sizes) in zip(paths, stores, strict=True):
            make_part(part, samples, pending=pending, options=sizes, model=model)
        before = look(root)
        options = Options(
            order=order,
            seed=7,
            filter=Filter(frozenset(splits) if splits else None),
            codec=codec,  # type: ignore[arg-type]
            chunk_rows=chunk_rows,
            shard_rows=shard_rows,
            span_samples=span_samples,
            where=Where(workers=2),
        )

        report = consolidate(paths, root / "out" / "merged.zarr", options)

        after = look(root)
        assert {name: after[name] for name in before if name != str(root)} == {
            name: before[name] for name in before if name != str(root)
        }
        assert report.ok
        assert (report.samples, report.complete) == (len(expected), len(expected))
        store = Store.open(root / "out" / "merged.zarr")
        if order == "length":
            expected.sort(key=lambda one: one.length)
        if order == "shuffle":
            at = {one.name: one for one in expected}
            found = [store.sample_id(sample) for sample in range(len(store))]
            assert sorted(found) == sorted(at)
            expected = [at[name] for name in found]
        check_holds(store, expected)
        assert sum(source.taken for source in report.sources) == len(expected)


def test_parts_of_one_dataset_are_put_between_one_another(directory: Path) -> None:
    samples = [Named(f"s{number}") for number in range(10)]
    odd = {one.name for one in samples[1::2]}
    even = {one.name for one in samples[::2]}
    make_part(directory / "a.zarr", samples, pending=odd)
    make_part(directory / "b.zarr", [Named("other"), Named("s3")])
    make_part(directory / "c.zarr", samples, pending=even)

    report = consolidate([directory / f"{name}.zarr" for name in "abc"], directory / "merged.zarr")

    # s3 is complete in b and in c: the source that is named first has it.
    expected = [one for one in samples if one.name != "s3"]
    check_holds(Store.open(directory / "merged.zarr"), [*expected, Named("other"), Named("s3")])
    assert [source.taken for source in report.sources] == [5, 2, 4]
    assert report.duplicates == 1


def test_a_shuffle_follows_from_seed_and_ids_alone(directory: Path) -> None:
    samples = [Named(f"s{number}") for number in range(30)]
    make_part(directory / "a.zarr", samples[:20])
    make_part(directory / "b.zarr", samples[20:])
    make_part(directory / "all.zarr", samples[::-1])

    def shuffled(parts: list[str], seed: int) -> list[bytes]:
        out = directory / f"{'-'.join(parts)}-{seed}.zarr"
        options = Options(order="shuffle", seed=seed, verify=False)
        consolidate([directory / f"{part}.zarr" for part in parts], out, options)
        packed = Store.open(out).plan_array("sample_id")
        return np.ascontiguousarray(packed).view(f"S{packed.shape[1]}").ravel().tolist()

    first = shuffled(["a", "b"], 1)

    assert shuffled(["all"], 1) == first
    assert shuffled(["all"], 2) != first
    assert sorted(first) == sorted(one.name.encode() for one in samples)


def test_ids_of_a_list_are_taken_and_what_is_not_complete_is_said(directory: Path) -> None:
    samples = [Named(f"s{number}") for number in range(8)]
    make_part(directory / "a.zarr", samples, pending={"s5"})
    ids = directory / "ids.txt"
    ids.write_text("s6\n\ns1\ns5\n")
    options = Options(filter=Filter.of([], [ids]))

    report = consolidate([directory / "a.zarr"], directory / "merged.zarr", options)

    check_holds(Store.open(directory / "merged.zarr"), [samples[1], samples[6]])
    assert report.notes == ("1 of the wanted ids are not complete in any source",)
