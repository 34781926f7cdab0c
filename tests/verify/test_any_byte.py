"""Whatever byte of a store is changed, verify finds it and never crashes."""

from __future__ import annotations

import json
from pathlib import Path

from hypothesis import HealthCheck, given, settings, strategies as st

from hsstore.errors import InputError
from hsstore.verify import verify_store


def test_any_changed_byte_and_any_cut_is_found(damaged: Path) -> None:
    files = sorted(path.relative_to(damaged) for path in damaged.rglob("*") if path.is_file())
    per_file = {file: st.integers(0, (damaged / file).stat().st_size - 1) for file in files}

    @settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
    @given(
        where=st.sampled_from(files).flatmap(lambda file: st.tuples(st.just(file), per_file[file])),
        change=st.one_of(st.none(), st.integers(1, 255)),
    )
    def check(where: tuple[Path, int], change: int | None) -> None:
        file, position = where
        before = (damaged / file).read_bytes()
        after = bytearray(before[:position] if change is None else before)
        if change is not None:
            after[position] ^= change
        (damaged / file).write_bytes(bytes(after))

        found = _finds_it(damaged)

        (damaged / file).write_bytes(before)
        assert found or _means_the_same(file, before, bytes(after))

    check()


def _finds_it(store: Path) -> bool:
    try:
        return not verify_store(store).ok
    except InputError:  # the root no longer says that it is a store of this format
        return True


def _means_the_same(file: Path, before: bytes, after: bytes) -> bool:
    """Allow other white space in the root's JSON, and other words in the record of a run."""
    if file == Path("zarr.json"):
        return bool(json.loads(before) == json.loads(after))
    return file.parts[0] == "runs"
