"""The target model's folder: its vocabulary, and the index of its weights, which SpecForge looks for."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hsstore.errors import InputError
from hsstore.files import fsync_directory, make_directory, output_errors, write_durably
from hsstore.semantic.checkpoint import INDEX, read_tensors

if TYPE_CHECKING:
    from pathlib import Path

EMBEDDING = "embed_tokens.weight"
HEAD = "lm_head.weight"


@dataclass(frozen=True, slots=True)
class Target:
    """A checkpoint, as a trainer has to be told of it."""

    path: Path
    vocabulary: int
    head: str | None
    """Name of the output matrix, which tied models share with the embedding; None: not found."""

    @classmethod
    def read(cls, path: Path) -> Target:
        """Read config.json, and the names of the weights where there are safetensors files.

        Raises
        ------
        InputError
        """
        config = _config(path)
        text = config.get("text_config", config)
        try:
            vocabulary = int(text["vocab_size"])
        except (KeyError, TypeError, ValueError):
            raise InputError(f"{path / 'config.json'}: no vocab_size there") from None
        return cls(path.resolve(), vocabulary, _head(path))


def read_target(trainer: str, model: Path | None, draft_vocabulary: int | None) -> Target | None:
    """Read a target's folder, if one is named, and find out whether it has what is asked for.

    Parameters
    ----------
    trainer : str
        The format.

    Raises
    ------
    InputError
        It is no checkpoint, it has not so many tokens, or no index of its weights and none can be made; or
        there is no folder, or no use, for a draft vocabulary.
    """
    if draft_vocabulary is not None and trainer == "eagle":
        raise InputError("--draft-vocab: EAGLE-1 and EAGLE-2 have no draft vocabulary")
    if model is None:
        if draft_vocabulary is not None:
            raise InputError(
                "--draft-vocab needs --model DIR: the target's vocabulary is in config.json"
            )
        return None
    target = Target.read(model)
    if draft_vocabulary is not None and not 1 <= draft_vocabulary <= target.vocabulary:
        raise InputError(
            f"--draft-vocab {draft_vocabulary}: the target has {target.vocabulary} tokens"
        )
    if trainer == "specforge" and not has_index(target.path):
        read_tensors(target.path)  # for the index that is made when all samples are written
    return target


def _config(path: Path) -> dict[str, Any]:
    try:
        config = json.loads((path / "config.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"{path} is not a checkpoint: it has no config.json") from None
    except (OSError, ValueError) as error:
        raise InputError(f"{path / 'config.json'}: {error}") from None
    if not isinstance(config, dict):
        raise InputError(f"{path / 'config.json'}: not a JSON object")
    return config


def _head(path: Path) -> str | None:
    try:
        names = list(read_tensors(path))
    except InputError:  # of another kind, or of weights that are elsewhere
        return None
    return next((name for end in (HEAD, EMBEDDING) for name in names if name.endswith(end)), None)


def has_index(path: Path) -> bool:
    """Say whether a folder has an index of its weights."""
    return any(path.glob("*.index.json"))


def refuse_without_index(target: Target | None) -> None:
    """Refuse a target for which an index would have to be made, which takes a directory.

    Raises
    ------
    InputError
    """
    if target is not None and not has_index(target.path):
        raise InputError(
            f"{target.path} has no *.index.json, which SpecForge looks for, and it is made in a directory only: leave "
            "--model away, or export into a directory"
        )


def link_with_index(model: Path, folder: Path) -> None:
    """Make a folder of links to a checkpoint's files, and the index that it lacks.

    Raises
    ------
    InputError
        It has no safetensors files.
    OutputError
    """
    tensors = read_tensors(model)
    index = {
        "metadata": {
            "total_size": sum(path.stat().st_size for path in model.glob("*.safetensors"))
        },
        "weight_map": {name: tensor.path.name for name, tensor in tensors.items()},
    }
    with output_errors(folder):
        make_directory(folder)
        for path in model.resolve().iterdir():
            link = folder / path.name
            if not link.is_symlink():
                link.symlink_to(path)
        fsync_directory(folder)
        write_durably(folder / INDEX, json.dumps(index, indent=2).encode())
