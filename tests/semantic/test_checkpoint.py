"""The two ends of a model are found in its files, or what is there is refused by name."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from hsstore.errors import InputError, RefusedError
from hsstore.semantic.head import read_head
from hsstore.spec import Norm
from tests.semantic.synthetic import Formula, bits_of, write_checkpoint

if TYPE_CHECKING:
    from pathlib import Path

    import numpy.typing as npt

FORMULA = Formula()
MODEL = FORMULA.describe()
EMBEDDING, WEIGHT = bits_of(FORMULA.embedding), FORMULA.norm_weight
OUTPUT = bits_of(-FORMULA.embedding)
OF_TEXT: dict[str, tuple[str, npt.NDArray[Any]]] = {
    "model.embed_tokens.weight": ("BF16", EMBEDDING),
    "model.norm.weight": ("F32", WEIGHT),
}


def test_of_a_sharded_checkpoint_every_tensor_comes_from_its_own_file(directory: Path) -> None:
    write_checkpoint(directory, OF_TEXT, "a.safetensors")
    write_checkpoint(directory, {"lm_head.weight": ("BF16", OUTPUT)}, "b.safetensors")
    names = dict.fromkeys(OF_TEXT, "a.safetensors") | {"lm_head.weight": "b.safetensors"}
    (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))

    head = read_head(directory, MODEL, WEIGHT)

    which = np.array([3, 500])
    np.testing.assert_array_equal(head.output.rows(which), -FORMULA.embedding[which])
    np.testing.assert_array_equal(head.embedding.rows(which), FORMULA.embedding[which])
    assert head.norm == "RMSNorm"
    assert head.vocabulary == 512


def test_the_text_part_of_a_multimodal_model_is_found(directory: Path) -> None:
    tensors = {f"language_model.{name}": tensor for name, tensor in OF_TEXT.items()}
    tensors["vision_tower.encoder.final_layernorm.weight"] = ("F32", -WEIGHT)
    tensors["language_model.model.layers.0.input_layernorm.weight"] = ("F32", -WEIGHT)
    write_checkpoint(directory, tensors)
    (directory / "config.json").write_text('{"text_config": {"tie_word_embeddings": true}}')

    head = read_head(directory, MODEL, WEIGHT)

    assert head.output.name == "language_model.model.embed_tokens.weight"


def test_gemmas_norm_is_known_by_the_weight_that_it_multiplies_by(directory: Path) -> None:
    write_checkpoint(directory, OF_TEXT | {"model.norm.weight": ("F32", WEIGHT - 1)})

    assert read_head(directory, MODEL, WEIGHT).norm == "RMSNorm with weight 1 + w"


def test_another_models_norm_is_refused(directory: Path) -> None:
    write_checkpoint(directory, OF_TEXT | {"model.norm.weight": ("F32", WEIGHT * 1.1)})

    with pytest.raises(RefusedError, match=r"another model than the store's.*model\.norm\.weight"):
        read_head(directory, MODEL, WEIGHT)


def test_a_layer_norm_is_refused_by_name(directory: Path) -> None:
    write_checkpoint(directory, OF_TEXT | {"model.norm.bias": ("F32", WEIGHT)})

    with pytest.raises(RefusedError, match=r"model\.norm\.weight comes with a bias.*LayerNorm"):
        read_head(directory, MODEL, WEIGHT)


def test_a_store_with_another_kind_of_norm_is_refused_by_name(directory: Path) -> None:
    write_checkpoint(directory, OF_TEXT)
    model = FORMULA.describe(norm=Norm(kind="layernorm", epsilon=1e-5))

    with pytest.raises(RefusedError, match="final norm of this store is 'layernorm'"):
        read_head(directory, model, WEIGHT)


def test_a_quantised_output_matrix_is_refused_by_name(directory: Path) -> None:
    quantised: dict[str, Any] = {"lm_head.weight": ("F8_E4M3", np.zeros((512, 64), np.uint8))}
    write_checkpoint(directory, OF_TEXT | quantised)
    head = read_head(directory, MODEL, WEIGHT)

    with pytest.raises(InputError, match=r"lm_head\.weight is stored as F8_E4M3"):
        head.output.rows(np.array([1]))


def test_no_checkpoint_no_matrix_and_no_norm_are_wrong_input(directory: Path) -> None:
    with pytest.raises(InputError, match="no safetensors files"):
        read_head(directory, MODEL, WEIGHT)
    write_checkpoint(directory, {"model.norm.weight": ("F32", WEIGHT)})
    with pytest.raises(InputError, match="neither an output matrix"):
        read_head(directory, MODEL, WEIGHT)
    write_checkpoint(directory, {"lm_head.weight": ("BF16", OUTPUT)})
    with pytest.raises(InputError, match="no final norm"):
        read_head(directory, MODEL, WEIGHT)


def test_a_file_that_is_cut_off_or_no_safetensors_is_wrong_input(directory: Path) -> None:
    write_checkpoint(directory, OF_TEXT)
    path = directory / "model.safetensors"
    whole = path.read_bytes()

    path.write_bytes(whole[:-1])
    with pytest.raises(InputError, match="cut off"):
        read_head(directory, MODEL, WEIGHT)
    path.write_bytes(b"\x20" + bytes(40))
    with pytest.raises(InputError, match="no safetensors header"):
        read_head(directory, MODEL, WEIGHT)
