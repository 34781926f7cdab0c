"""What a file of each format holds, and that reading gives back what was written."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from hsstore.errors import InputError
from hsstore.formats import FORMATS, ForeignSample, Hints
from hsstore.formats.norm import apply_norm, stand_in_for_pre_norm
from hsstore.formats.torchspec import pack_mask, unpack_mask
from hsstore.spec import Norm

if TYPE_CHECKING:
    from hsstore.spec import FinalState

HIDDEN, LAYERS = 6, 3
FINALS: dict[str, tuple[FinalState, ...]] = {
    "specforge": ("post-norm",),
    "speculators": ("pre-norm",),
    "modelopt": ("post-norm", "pre-norm"),
    "torchspec": ("post-norm", "pre-norm"),
    "seed": ("post-norm", "pre-norm", "none"),
}
WITH_A_MASK = {"specforge", "modelopt", "torchspec", "seed", "eagle"}
WITH_AN_ID = {"modelopt", "torchspec", "seed"}


def make(rows: int, final: FinalState, *, layers: int = LAYERS, seed: int = 0) -> ForeignSample:
    """Make a sample of any bits, NaNs and -0.0 included."""
    generator = np.random.default_rng([seed, rows])
    shape = (rows, layers + (final != "none"), HIDDEN)
    bits = generator.integers(0, 1 << 16, shape, dtype=np.uint16)
    return ForeignSample(
        generator.integers(0, 160_000, rows, dtype=np.int32),
        generator.integers(0, 2, rows, dtype=np.uint8),
        bits.view(ml_dtypes.bfloat16),
        final,
        "chat/ä",
    )


@pytest.mark.parametrize(
    ("name", "final"), [(n, f) for n, finals in FINALS.items() for f in finals]
)
@given(rows=st.integers(1, 40), seed=st.integers(0, 2**32 - 1))
@settings(deadline=None, max_examples=20)
def test_what_was_written_is_read_bit_for_bit(
    name: str, final: FinalState, rows: int, seed: int
) -> None:
    sample = make(rows, final, seed=seed)

    content = FORMATS[name].write_sample(sample)
    found = FORMATS[name].read_sample(content, Hints(final, sample.states.shape[1]))

    assert found.final == final
    assert found.sample_id == (sample.sample_id if name in WITH_AN_ID else "")
    np.testing.assert_array_equal(found.input_ids, sample.input_ids, strict=True)
    np.testing.assert_array_equal(
        found.states.view(np.uint16), sample.states.view(np.uint16), strict=True
    )
    if name in WITH_A_MASK:
        np.testing.assert_array_equal(found.loss_mask, sample.loss_mask, strict=True)
    else:
        assert found.loss_mask is None


@pytest.mark.parametrize("name", FORMATS)
def test_nothing_that_is_written_is_a_view_of_more_than_itself(name: str) -> None:
    final, layers = (FINALS.get(name, ("post-norm",))[0], LAYERS)
    content = FORMATS[name].write_sample(_finite(make(5, final, layers=layers)))

    for value in content.values():
        if isinstance(value, np.ndarray):
            base = value
            while isinstance(base.base, np.ndarray):
                base = base.base
            assert base.nbytes == value.nbytes or value.shape[1:] == (LAYERS + 1, HIDDEN)
            assert value.flags.c_contiguous


def test_the_names_mean_what_each_project_means_by_them() -> None:
    post, pre = make(7, "post-norm"), make(7, "pre-norm")
    aux = post.states[:, :LAYERS].reshape(7, LAYERS * HIDDEN)
    last = post.states[:, LAYERS]

    specforge = FORMATS["specforge"].write_sample(post)
    torchspec = FORMATS["torchspec"].write_sample(post)
    modelopt = FORMATS["modelopt"].write_sample(post)
    speculators = FORMATS["speculators"].write_sample(pre)

    for value, expected in (
        (specforge["hidden_state"], last[None]),
        (specforge["aux_hidden_state"], aux[None]),
        (torchspec["hidden_states"], aux),
        (torchspec["last_hidden_states"], last),
        (modelopt["hidden_states"], last),
        (modelopt["aux_hidden_states"], aux),
        (speculators["hidden_states"], pre.states),
    ):
        np.testing.assert_array_equal(value.view(np.uint16), expected.view(np.uint16), strict=True)
    assert set(specforge) == {"input_ids", "loss_mask", "hidden_state", "aux_hidden_state"}
    assert set(speculators) == {"hidden_states", "token_ids"}
    assert modelopt["hidden_states_prenorm"] is False
    assert FORMATS["modelopt"].write_sample(pre)["hidden_states_prenorm"] is True
    for content in (specforge, torchspec, modelopt):
        assert content["input_ids"].dtype == np.int64
        assert content["input_ids"].shape == (7,)


def test_eagle_files_hold_the_final_state_in_float16_and_refuse_what_is_too_large() -> None:
    sample = _finite(make(5, "post-norm"))
    content = FORMATS["eagle"].write_sample(sample)
    found = FORMATS["eagle"].read_sample(content, Hints("post-norm", 1))

    assert content["hidden_state"].dtype == np.float16
    np.testing.assert_allclose(
        found.states[:, 0].astype(np.float32), sample.last.astype(np.float32), rtol=1e-3, atol=1e-7
    )
    sample.states[3, -1, 2] = 70_000
    with pytest.raises(InputError, match="row 3 holds a state beyond 65,504"):
        FORMATS["eagle"].write_sample(sample)
    with pytest.raises(InputError, match="the final state alone, and 3 captured layers"):
        FORMATS["eagle"].read_sample(content, Hints("post-norm", 4))
    of_another = FORMATS["specforge"].write_sample(make(5, "post-norm"))
    with pytest.raises(InputError, match="as SpecForge's files do and EAGLE's do not"):
        FORMATS["eagle"].read_sample(of_another, Hints("post-norm", 1))


@pytest.mark.parametrize(
    ("name", "final"), [("specforge", "pre-norm"), ("speculators", "post-norm"), ("eagle", "none")]
)
def test_a_final_state_of_the_other_kind_is_refused(name: str, final: FinalState) -> None:
    with pytest.raises(InputError, match=f"and this one is {final}"):
        FORMATS[name].write_sample(make(3, final))


@pytest.mark.parametrize("name", ["modelopt", "torchspec"])
def test_formats_that_need_a_final_state_refuse_a_sample_without(name: str) -> None:
    with pytest.raises(InputError, match="need the final state"):
        FORMATS[name].write_sample(make(3, "none"))


def test_a_file_says_more_than_a_hint_where_it_does_and_else_the_hint_counts() -> None:
    content = dict(FORMATS["modelopt"].write_sample(make(3, "pre-norm")))

    assert FORMATS["modelopt"].read_sample(content, Hints("post-norm", 4)).final == "pre-norm"
    del content["hidden_states_prenorm"]
    assert FORMATS["modelopt"].read_sample(content, Hints("pre-norm", 4)).final == "pre-norm"
    del content["loss_mask"]
    assert FORMATS["modelopt"].read_sample(content, Hints("pre-norm", 4)).loss_mask is None


@pytest.mark.parametrize("name", FORMATS)
def test_files_of_many_samples_have_names_of_their_own_that_sort_as_they_should(name: str) -> None:
    paths = [FORMATS[name].path(row, f"id {row}/..") for row in (0, 2, 10, 1_999, 2_000, 123_456)]

    assert len(set(paths)) == len(paths)
    assert not any(part in {"", ".", ".."} for path in paths for part in path.split("/"))
    if name in {"specforge", "modelopt"}:
        assert paths == sorted(paths)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"aux_hidden_state": None}, "no 'aux_hidden_state' in the file; it has 'input_ids'"),
        ({"input_ids": np.zeros((2, 3), np.int64)}, r"'input_ids' is int64 \(2, 3\)"),
        ({"input_ids": np.zeros(3, np.float32)}, "'input_ids' is float32"),
        ({"hidden_state": np.zeros((1, 4, HIDDEN))}, r"shape \(4, 6\), expected \(3, width\)"),
        (
            {"aux_hidden_state": np.zeros((3, 2 * HIDDEN))},
            "are 2 layers of width 6; 3 are expected",
        ),
        ({"aux_hidden_state": np.zeros((3, 15))}, "are 2.5 layers of width 6"),
    ],
)
def test_what_is_wrong_with_a_file_is_named(change: dict[str, Any], message: str) -> None:
    content = dict(FORMATS["specforge"].write_sample(make(3, "post-norm"))) | change
    content = {key: value for key, value in content.items() if value is not None}

    with pytest.raises(InputError, match=message):
        FORMATS["specforge"].read_sample(content, Hints("post-norm", LAYERS + 1))


def test_home_made_files_are_read_in_whatever_shape_they_have() -> None:
    sample = make(5, "post-norm")
    ids, states = sample.input_ids.tolist(), sample.states
    for value in (
        states,
        states[None],
        states.reshape(5, -1),
        [states[:, slot] for slot in range(LAYERS + 1)],
        tuple(states[None, :, slot] for slot in range(LAYERS + 1)),
        states.view(np.int16),
    ):
        content = {"input_ids": ids, "hidden_states": value}
        found = FORMATS["seed"].read_sample(content, Hints("post-norm", LAYERS + 1))
        np.testing.assert_array_equal(found.states.view(np.uint16), states.view(np.uint16))
        assert found.states.dtype == ml_dtypes.bfloat16

    for bad in (states[:4], states[:, :3], [states[:, 0]], states[..., :5].reshape(5, -1)[:, :-1]):
        with pytest.raises(InputError, match="'hidden_states'"):
            FORMATS["seed"].read_sample(
                {"input_ids": ids, "hidden_states": bad}, Hints("post-norm", LAYERS + 1)
            )


@given(st.lists(st.integers(0, 1), min_size=1, max_size=50))
def test_a_packed_mask_is_the_mask(mask: list[int]) -> None:
    packed = pack_mask(np.array(mask, np.uint8))

    assert unpack_mask(packed, len(mask)).tolist() == mask
    assert all(int(run) > 0 for run in packed.split(",")[1:])


@pytest.mark.parametrize("packed", ["", "2,x", "3,-1,3", "2,2", "1e3"])
def test_a_packed_mask_of_another_sample_or_of_no_lengths_is_refused(packed: str) -> None:
    with pytest.raises(InputError, match="packed_loss_mask"):
        unpack_mask(packed, 5)


# --- the norm ---------------------------------------------------------------------------------

NORM = Norm(epsilon=1e-5)


def _finite(sample: ForeignSample) -> ForeignSample:
    values = np.random.default_rng(0).normal(size=sample.states.shape)
    sample.states[...] = values.astype(sample.states.dtype)
    return sample


def test_a_norm_is_that_of_its_definition() -> None:
    generator = np.random.default_rng(0)
    x, weight = generator.normal(size=(1500, 8)).astype("f4"), generator.normal(size=8).astype("f4")

    found = apply_norm(x, NORM, weight)

    wide = x.astype(np.float64)
    expected = wide / np.sqrt((wide**2).mean(axis=1, keepdims=True) + 1e-5) * weight
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float32])
def test_what_stands_in_for_the_state_before_the_norm_gives_the_one_after_it(dtype: Any) -> None:
    generator = np.random.default_rng(0)
    weight = generator.uniform(0.2, 3, 64).astype(dtype).astype(np.float32)
    post = apply_norm((40 * generator.normal(size=(1500, 64))).astype(dtype), NORM, weight)

    pre, error = stand_in_for_pre_norm(post, NORM, weight)

    again, given = (values.astype(np.float64) for values in (apply_norm(pre, NORM, weight), post))
    difference = np.linalg.norm(again - given, axis=1) / np.linalg.norm(given, axis=1)
    assert error == pytest.approx(difference.max(), rel=1e-3)
    assert error < (2**-8 if dtype is ml_dtypes.bfloat16 else 1e-5)


def test_a_channel_that_the_norm_removes_and_another_norm_are_refused() -> None:
    weight = np.ones(8, np.float32)
    weight[[2, 5]] = 1e-5, 0

    with pytest.raises(InputError, match=r"is 1e-05 in channel 2 \(2 such channels\)"):
        stand_in_for_pre_norm(np.ones((2, 8), np.float32), NORM, weight)
    with pytest.raises(InputError, match="'layernorm'; only rmsnorm"):
        apply_norm(np.ones((2, 8), np.float32), Norm(kind="layernorm", epsilon=1e-5), weight)
