"""What does not belong together is refused, by its field and with both values, and nothing is written."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from hsstore.consolidate import Filter, Options, consolidate
from hsstore.create import Golden
from hsstore.errors import CorruptStoreError, InputError, RefusedError
from hsstore.spec import Norm
from hsstore.store import Store
from hsstore.testing.stores import make_model
from tests.consolidate.parts import Named, check_holds, look, make_part
from tests.extraction.mounts import small_tmpfs

if TYPE_CHECKING:
    from pathlib import Path

SAMPLES = [Named(f"s{number}") for number in range(4)]
OTHERS = [Named(f"t{number}") for number in range(4)]
MODEL = make_model()


@pytest.mark.parametrize(
    ("field", "update", "values"),
    [
        ("dtype", {"dtype": "float16"}, "'bfloat16' in {a} and 'float16' in {b}"),
        ("hidden", {"hidden": 32}, "16 in {a} and 32 in {b}"),
        ("num_layers", {"num_layers": 7}, "6 in {a} and 7 in {b}"),
        ("layers", {"layers": (0, 4)}, "(0, 3) in {a} and (0, 4) in {b}"),
        ("final", {"final": "pre-norm"}, "'post-norm' in {a} and 'pre-norm' in {b}"),
        ("norm", {"norm": Norm(epsilon=1e-6)}, "1e-05}} in {a} and {{'kind': 'rmsnorm', 'epsilon'"),
        ("capture_hash", {"capture_hash": "4567"}, "'0123' in {a} and '4567' in {b}"),
    ],
)
def test_another_model_is_refused(
    directory: Path, field: str, update: dict[str, object], values: str
) -> None:
    a, b = directory / "a.zarr", directory / "b.zarr"
    make_part(a, SAMPLES)
    make_part(b, OTHERS, model=MODEL.model_copy(update=update))

    with pytest.raises(RefusedError) as refusal:
        consolidate([a, b], directory / "out.zarr")

    assert f"cannot be merged: {field} is " in str(refusal.value)
    assert values.format(a=a, b=b) in str(refusal.value)
    assert sorted(path.name for path in directory.iterdir()) == [
        "a.zarr",
        "b.zarr",
    ]


def test_another_tokenizer_or_norm_is_refused(directory: Path) -> None:
    make_part(directory / "a.zarr", SAMPLES, tokenizer_hash="aa")
    make_part(directory / "b.zarr", OTHERS, tokenizer_hash="bb")
    norm = np.linspace(0.5, 1.5, 16, dtype=np.float32)
    norm[3] = 9
    make_part(directory / "c.zarr", OTHERS, tokenizer_hash="aa", norm_weight=norm)

    with pytest.raises(RefusedError, match=r"tokenizer_hash is 'aa' in .*a.zarr and 'bb' in"):
        consolidate([directory / "a.zarr", directory / "b.zarr"], directory / "out.zarr")
    with pytest.raises(RefusedError, match=r"norm_weight\[3\] is .* and 9.0 in .*c.zarr"):
        consolidate([directory / "a.zarr", directory / "c.zarr"], directory / "out.zarr")


@pytest.mark.parametrize(
    ("other", "what"),
    [
        (Named("s2", version=1), "which differ in states"),
        (Named("s2", length=6), "which differ in tokens or loss mask"),
        (Named("s2", split="test"), "which differ in split"),
    ],
)
def test_samples_with_one_id_that_differ_are_refused_or_the_first_is_taken(
    directory: Path, other: Named, what: str
) -> None:
    make_part(directory / "a.zarr", SAMPLES)
    make_part(directory / "b.zarr", [OTHERS[0], other])
    paths = [directory / "a.zarr", directory / "b.zarr"]

    with pytest.raises(RefusedError) as refusal:
        consolidate(paths, directory / "out.zarr")

    assert "1 samples have the same id as another one and differ: 's2'" in str(refusal.value)
    assert what in str(refusal.value)
    assert f"sample 2 of {paths[0]} and sample 1 of {paths[1]}" in str(refusal.value)

    report = consolidate(paths, directory / "out.zarr", Options(on_conflict="first"))

    assert (report.duplicates, report.conflicts) == (1, 1)
    check_holds(Store.open(directory / "out.zarr"), [*SAMPLES, OTHERS[0]])


def test_a_destination_that_another_command_made_is_refused(directory: Path) -> None:
    a, out = directory / "a.zarr", directory / "out.zarr"
    make_part(a, SAMPLES)
    make_part(directory / "b.zarr", OTHERS)
    consolidate([a], out)
    before = look(directory)

    for paths, options, said in [
        ([a], Options(order="length"), "order was 'dataset' and is 'length' now"),
        ([a], Options(codec="max"), "codec was None and is 'max' now"),
        ([a], Options(seed=3), "seed was 0 and is 3 now"),
        ([a], Options(filter=Filter(frozenset({"train"}))), "splits was None and is"),
        ([a], Options(filter=Filter(None, frozenset({b"s1"}))), "ids was None and is"),
        ([a, directory / "b.zarr"], Options(), "sources was"),
    ]:
        with pytest.raises(RefusedError, match="made by another command") as refusal:
            consolidate(paths, out, options)
        assert said in str(refusal.value)
    with pytest.raises(RefusedError, match="no consolidation has made it"):
        consolidate([a], directory / "b.zarr")
    (directory / "folder").mkdir()
    with pytest.raises(RefusedError, match="name a destination that does not exist"):
        consolidate([a], directory / "folder")
    (directory / "folder").rmdir()
    assert {name: one for name, one in look(directory).items() if name != str(directory)} == {
        name: one for name, one in before.items() if name != str(directory)
    }


def test_wrong_paths_and_wishes_are_input_errors(directory: Path) -> None:
    a, out = directory / "a.zarr", directory / "out.zarr"
    make_part(a, SAMPLES, pending={"s0"})

    for paths, destination, said in [
        ([a, directory / "." / "a.zarr"], out, "named twice"),
        ([a], a, "is the destination"),
        ([a], a / "inside.zarr", "lies within the other"),
        ([a, directory / "none.zarr"], out, "no hsstore store is there"),
    ]:
        with pytest.raises(InputError, match=said):
            consolidate(paths, destination)
    for wanted, said in [
        (Filter(frozenset({"tset"})), "no source has a split 'tset'; there are train"),
        (Filter(None, frozenset({b"s1", b"x", b"y"})), "2 of 3 wanted ids are in no source"),
        (Filter(None, frozenset({b"s0"})), "there is nothing to write"),
    ]:
        with pytest.raises(InputError, match=said):
            consolidate([a], out, Options(filter=wanted))
    with pytest.raises(InputError, match="cannot be read"):
        Filter.of([], [directory / "none.txt"])
    (directory / "empty.txt").write_text("\n")
    with pytest.raises(InputError, match="holds no sample id"):
        Filter.of([], [directory / "empty.txt"])


def test_a_source_whose_bitmap_is_damaged_is_named(directory: Path) -> None:
    store = make_part(directory / "a.zarr", SAMPLES)
    file = store.path / "complete" / "c.0"
    file.write_bytes(b"\1" + file.read_bytes()[1:])
    file.write_bytes(bytes([file.read_bytes()[0] ^ 3]) + file.read_bytes()[1:])

    with pytest.raises(CorruptStoreError, match=r"source .*a.zarr: .*run hsstore verify on it"):
        consolidate([directory / "a.zarr"], directory / "out.zarr")


def test_too_small_a_disk_is_refused_before_anything_is_written(directory: Path) -> None:
    model = make_model(hidden=2048)
    samples = [Named(f"s{number}", length=100) for number in range(4)]
    make_part(directory / "a.zarr", samples, model=model)
    with small_tmpfs(1 << 20) as disk:
        with pytest.raises(RefusedError, match=r"needs about 0.00 GB more, and 0.00 GB are free"):
            consolidate([directory / "a.zarr"], disk / "out.zarr")
        assert not list(disk.iterdir())


def test_golden_states_are_carried_over_and_differences_are_said(directory: Path) -> None:
    bits = Named("g", length=3).states()
    moved = bits.copy()
    moved[0, 0, 0] ^= 1
    for name, golden in [
        ("a", None),
        ("b", Golden((1, 2, 3), bits)),
        ("c", Golden((1, 2, 3), bits)),
        ("d", Golden((1, 2, 3), moved)),
        ("e", Golden((1, 2, 4), bits)),
    ]:
        make_part(
            directory / f"{name}.zarr", [Named(f"{name}{n}") for n in range(3)], golden=golden
        )

    paths = [directory / f"{name}.zarr" for name in "abcde"]
    report = consolidate(paths, directory / "out.zarr")

    store = Store.open(directory / "out.zarr")
    assert store.spec.golden_input_ids == (1, 2, 3)
    assert np.array_equal(store.plan_array("golden").view(store.bits), bits)
    assert [note.split(": ")[1].split(" (")[0] for note in report.notes] == [
        "its golden states differ by 0.00%",
        "its golden states are of other tokens and are not kept",
    ]


def test_the_destination_says_where_everything_came_from(directory: Path) -> None:
    a = make_part(directory / "a.zarr", SAMPLES)
    b = make_part(directory / "b.zarr", OTHERS)
    consolidate([a.path, b.path], directory / "out.zarr", Options(order="shuffle"))

    store = Store.open(directory / "out.zarr")
    (record,) = store.runs()
    source, sample = (
        store.plan_array(f"runs/{record.run}/{name}").tolist() for name in ("source", "sample")
    )

    assert (record.engine, record.result) == ("hsstore consolidate", "finished")
    assert [one["store"] for one in record.options["sources"]] == [a.spec.store, b.spec.store]
    assert [one["runs"][0]["run"] for one in record.options["sources"]] == [
        "run-of-a.zarr",
        "run-of-b.zarr",
    ]
    for index in range(len(store)):
        assert [a, b][source[index]].sample_id(sample[index]) == store.sample_id(index)
