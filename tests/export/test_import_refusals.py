"""What an import has to be told, what it refuses, and whom it leaves alone."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

from extraction.announced import announced_for
from hsstore.claims import Claims
from hsstore.errors import InputError
from hsstore.store import Store
from tests.export.given import (
    HIDDEN,
    LAYERS,
    LAYERS_GIVEN,
    SMALL_GIVEN,
    WEIGHT,
    make_empty,
    run,
    without_record,
)

if TYPE_CHECKING:
    from extraction.announced import Announced
    from tests.export.given import Library


def digests(store: Store) -> list[int]:
    found: list[int] = store.completion().digest.tolist()
    return found


def test_layers_that_the_files_cannot_have_are_refused_before_anything_is_written(
    library: Library, directory: Path, checkpoint: Path
) -> None:
    files = library.copy("specforge", directory / "out")
    empty = make_empty(directory / "b.zarr")
    command = ("import", files, empty.path, "--format", "specforge", "--layers")

    against_record = run(*command, "1,3,4")
    without_record(files)
    none = run(*command[:-1])
    too_few = run(*command, "0,2")
    descending = run(*command, "3,2,0")
    counted_as_inputs = run(*command, "1,3,4")
    to_create = (
        "import",
        files,
        directory / "c.zarr",
        "--format",
        "specforge",
        "--model",
        checkpoint,
    )
    not_in_model = run(*to_create, "--layers", "0,2,9")

    assert against_record.exit_code == 2
    assert "hsstore-export.json says 0,2,3; --layers counts outputs" in against_record.output
    assert none.exit_code == 2
    assert "--layers is needed: no specforge file says which" in none.output
    assert too_few.exit_code == 2
    assert "are 3 layers of width 32; 2 are expected" in too_few.output
    assert descending.exit_code == 2
    assert counted_as_inputs.exit_code == 3
    assert "they look like inputs of layers, which are counted one higher" in (
        counted_as_inputs.output
    )
    assert not_in_model.exit_code == 2
    assert "outside 0..5" in not_in_model.output
    assert not (directory / "c.zarr").exists()
    assert not empty.completion().complete.any()


def test_a_final_state_that_nobody_named_or_that_contradicts_the_files_is_refused(
    library: Library,
    directory: Path,
) -> None:
    empty = make_empty(directory / "b.zarr")
    modelopt = without_record(library.copy("modelopt", directory / "m"))
    torchspec = without_record(library.copy("torchspec", directory / "t"))
    said = (empty.path, "--layers", LAYERS_GIVEN)

    for arguments, message in (
        ((modelopt, *said, "--format", "modelopt"), "--final is needed: no modelopt file says"),
        (
            (torchspec, *said, "--format", "torchspec", "--final", "pre-norm"),
            "dataset.json hold the post-norm state",
        ),
        (
            (torchspec, *said, "--format", "specforge"),
            "no file that ends with .ckpt or .ckpt.gz",
        ),
        ((directory / "no", *said, "--format", "seed"), "no such directory"),
    ):
        result = run("import", *arguments)
        assert result.exit_code == 2
        assert message in result.output


def test_files_of_another_export_and_of_other_states_are_refused(
    library: Library, directory: Path
) -> None:
    files = library.copy("modelopt", directory / "out", "pre-norm")
    other = library.copy("modelopt", directory / "post")
    pre = make_empty(directory / "pre.zarr", "pre-norm")

    wrong_format = run("import", files, pre.path, "--format", "seed")
    cannot = run("import", other, pre.path, "--format", "modelopt")

    assert wrong_format.exit_code == 2
    assert "says that these are modelopt files, not seed" in wrong_format.output
    assert cannot.exit_code == 3
    assert "the files hold the post-norm state, the store the pre-norm one, which" in cannot.output


def test_eagle_files_fill_a_store_of_final_states_alone(
    library: Library, directory: Path, checkpoint: Path
) -> None:
    store = library.store()
    files = without_record(library.copy("eagle", directory / "out"))
    empty = make_empty(directory / "b.zarr")

    refused = run("import", files, empty.path, "--format", "eagle")
    command = ("import", files, directory / "c.zarr", "--format", "eagle", "--model", checkpoint)
    result = run(*command)

    assert refused.exit_code == 3
    assert "the store has layers [0, 2, 3], the files []" in refused.output
    assert result.exit_code == 0, result.output
    new = Store.open(directory / "c.zarr")
    assert (new.spec.model.layers, new.spec.model.dtype) == ((), "float16")
    tokens = {new.input_ids(sample).tobytes(): sample for sample in range(len(new))}
    there = tokens[store.input_ids(4).tobytes()]
    np.testing.assert_array_equal(
        new.states(there)[:, 0], store.states(4)[:, -1].astype(np.float16)
    )


def test_home_made_files_need_the_training_data_where_they_have_no_mask(
    library: Library, directory: Path, checkpoint: Path
) -> None:
    store = library.store()
    (directory / "seed").mkdir()
    data = directory / "data.jsonl"
    records = []
    for sample in range(len(store)):
        ids, mask = store.input_ids(sample), store.loss_mask(sample)
        states = torch.from_numpy(store.states(sample).view(np.int16)).view(torch.bfloat16)
        slots = [one.contiguous() for one in states.unbind(1)]
        content = {"input_ids": torch.from_numpy(ids)[None], "hidden_states": slots}
        torch.save(content, directory / f"seed/{sample}.pt")
        record = {"id": store.sample_id(sample), "input_ids": ids.tolist()}
        records.append(record | {"loss_mask": mask.tolist(), "split": store.split(sample)})
    data.write_text("\n".join(map(json.dumps, records)))
    command = ("import", directory / "seed", directory / "b.zarr", "--format", "seed")
    said = ("--layers", LAYERS_GIVEN, "--final", "post-norm", "--model", checkpoint)

    refused = run(*command, *said)
    result = run(*command, *said, "--data", data, "--min-loss-tokens", "0", *SMALL_GIVEN)

    assert refused.exit_code == 2
    assert "does not say which tokens are supervised: give the training data, --data" in (
        refused.output
    )
    assert result.exit_code == 0, result.output
    new = Store.open(directory / "b.zarr")
    assert digests(new) == digests(store)
    assert new.spec.dataset.fingerprint == store.spec.dataset.fingerprint
    data.write_text("\n".join(map(json.dumps, records[1:])))
    again = run(*command, *said, "--data", data, "--min-loss-tokens", "0")
    assert again.exit_code == 3
    assert "made from other data" in again.output


def test_a_new_store_needs_a_model_and_one_with_a_norm_that_can_be_read(
    library: Library, directory: Path, checkpoint: Path
) -> None:
    files = library.copy("specforge", directory / "out")
    gemma = Path(shutil.copytree(checkpoint, directory / "gemma"))
    config = json.loads((gemma / "config.json").read_text())
    (gemma / "config.json").write_text(json.dumps(config | {"model_type": "gemma3"}))
    plain = Path(shutil.copytree(checkpoint, directory / "plain"))
    del config["rms_norm_eps"]
    (plain / "config.json").write_text(json.dumps(config))
    command = ("import", files, directory / "b.zarr", "--format", "specforge")

    for options, message in (
        ((), "does not exist: to create it give --model DIR, or --server URL"),
        (("--model", gemma), "norms of gemma3 models multiply by 1 + weight, or may; start"),
        (("--model", plain), "no 'rms_norm_eps' there; start the server"),
        (("--model", directory), "is not a checkpoint: it has no config.json"),
    ):
        result = run(*command, *options)
        assert result.exit_code == 2
        assert message in result.output
    gone = run(*command, "--server", f"http://127.0.0.1:1={directory / 'spool'}")
    assert gone.exit_code == 75
    assert not (directory / "b.zarr").exists()


@pytest.mark.parametrize(
    "config",
    [
        *(
            {"model_type": kind}
            for kind in (
                "gemma3_text",
                "recurrent_gemma",
                "vaultgemma",
                "qwen3_next",
                "qwen3_5_text",
                "qwen3_5_moe_text",
                "qwen4_exp_text",
                "minimax_m3_vl_text",
                "muse_glimmer_text",
                "muse_spark_text",
                "nemotron",
                "step3p5",
                "step3p7",
                "gigachat3_5",
                "interns2_mobius_text",
            )
        ),
        {"model_type": "qwen3_5", "text_config": {"hidden_size": HIDDEN}},
    ],
)
def test_a_norm_that_multiplies_by_one_plus_its_weight_is_left_to_a_server(
    config: dict[str, object], checkpoint: Path, directory: Path
) -> None:
    model = Path(shutil.copytree(checkpoint, directory / "model"))
    plain = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(plain | config))

    with pytest.raises(InputError, match=r"multiply by 1 \+ weight, or may; start the server"):
        _announced(model)


def test_a_layer_norm_is_left_to_a_server_and_the_like_of_llamas_is_read(
    checkpoint: Path, directory: Path
) -> None:
    model = Path(shutil.copytree(checkpoint, directory / "model"))
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"model_type": "nemotron-nas"}))
    read = _announced(model)
    tensors = load_file(model / "model.safetensors")
    tensors["model.norm.bias"] = np.ones(HIDDEN, np.float32)
    save_file(tensors, model / "model.safetensors")

    assert read.norm_weight.tolist() == WEIGHT.tolist()
    with pytest.raises(
        InputError, match=r"model\.norm\.weight comes with a bias; start the server"
    ):
        _announced(model)


def _announced(model: Path) -> Announced:
    return announced_for(
        model, layers=LAYERS, final="post-norm", dtype="bfloat16", compute_dtype="bfloat16"
    )


def test_an_export_gives_its_server_to_no_other_model_of_the_same_shape(
    library: Library, directory: Path, checkpoint: Path
) -> None:
    files = library.copy("specforge", directory / "out")
    finetune = Path(shutil.copytree(checkpoint, directory / "finetune"))
    tensors = load_file(finetune / "model.safetensors")
    tensors["model.norm.weight"] = tensors["model.norm.weight"][::-1].copy()
    save_file(tensors, finetune / "model.safetensors")

    command = ("import", files, directory / "b.zarr", "--format", "specforge")
    result = run(*command, "--model", finetune)

    assert result.exit_code == 3
    assert "from states of test/model, whose final norm has another weight than" in result.output
    assert not (directory / "b.zarr").exists()


def test_a_store_that_somebody_else_writes_is_refused(library: Library, directory: Path) -> None:
    files = library.copy("specforge", directory / "out")
    empty = make_empty(directory / "b.zarr")

    with Claims(empty, "other") as claims:
        claims.take([0])
        result = run("import", files, empty.path, "--format", "specforge")

    assert result.exit_code == 3
    assert "this store is being written by run other" in result.output
