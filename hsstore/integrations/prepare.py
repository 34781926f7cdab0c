"""What a trainer needs beside the samples: an export without them, for training on the store itself.

::

    python -m hsstore.integrations.prepare states.zarr data --format speculators --model DIR --draft-vocab 8192

writes speculators' data set of tokens and masks, or SpecForge's vocabulary map and the index that it wants of
the target, and says what the trainer has to be told. A note says which samples of which store it was.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import ValidationError

from hsstore.errors import InputError
from hsstore.export.beside import Beside, count_tokens
from hsstore.export.choose import states_hash
from hsstore.export.settings import Told, settings
from hsstore.export.target import read_target
from hsstore.files import make_directory, output_errors, write_durably
from hsstore.integrations.command import end_with
from hsstore.integrations.samples import ExportedSamples
from hsstore.location import locate
from hsstore.spec import Record
from hsstore.subset import from_ranges, to_ranges

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hsstore.location import Location

NOTE = "hsstore-feed.json"
FORMATS = ("specforge", "speculators", "modelopt")
FILES = ("data:", "  hidden_states_path", "OfflineSupervisedDataset")
"""How those settings begin that name files of samples."""


class Feed(Record):
    """Which samples a directory was prepared for."""

    store: str
    """Path or URL."""
    store_id: str
    """Its UUID."""
    format: str
    samples: tuple[tuple[int, int], ...]
    """Ranges of indices in the store, row after row."""


def prepare(
    path: str | Location,
    directory: Path,
    form: str,
    *,
    split: str | None = None,
    draft_vocabulary: int | None = None,
    model: Path | None = None,
) -> tuple[str, ...]:
    """Write what goes beside the complete samples of a store; return what the trainer has to be told.

    Parameters
    ----------
    directory : Path
        Must not exist, or be empty.
    form : str
        The format, as `hsstore export` calls it.
    split : str, optional
        Samples of this split alone.
    draft_vocabulary : int, optional
        Tokens of the draft model.
    model : Path, optional
        The target's folder; needed for a draft vocabulary.

    Raises
    ------
    InputError
        There is no such store, split or model, no complete sample, the model has not these tokens or not so
        many, or the directory is not empty.
    RefusedError
        The store has not what the format needs.
    OutputError
    """
    samples = ExportedSamples.of(path, form, split=split)
    store, final = samples.open(), samples.source().final
    target = read_target(form, model, draft_vocabulary)
    counts = count_tokens(store, samples.samples, form, target, draft_vocabulary)
    with output_errors(directory):
        make_directory(directory)
        if strangers := sorted(file.name for file in directory.iterdir()):
            raise InputError(
                f"{directory} is not empty: it has {strangers[0]!r}; name a directory that does not exist"
            )
    Beside(
        directory,
        store,
        form,
        samples.samples,
        final,
        states_hash(store, samples.samples),
        target,
        draft_vocabulary,
        counts,
    ).write()
    _write_note(directory, samples)
    told = Told(directory, form, store.spec.model, final, target, draft_vocabulary, 1, None)
    return tuple(line for line in settings(told) if not line.startswith(FILES))


def _write_note(directory: Path, samples: ExportedSamples) -> None:
    feed = Feed(
        store=str(samples.path),
        store_id=samples.store_id,
        format=samples.format,
        samples=to_ranges(samples.samples),
    )
    with output_errors(directory):
        write_durably(directory / NOTE, feed.model_dump_json(indent=2).encode())


def read_prepared(directory: Path, form: str, store: str | None = None) -> ExportedSamples:
    """Return the samples that a directory was prepared for.

    Parameters
    ----------
    store : str, optional
        Where the store is now.

    Raises
    ------
    InputError
        The directory was not prepared for this format, or there is another store.
    """
    note = directory / NOTE
    try:
        feed = Feed.model_validate_json(note.read_bytes())
    except FileNotFoundError:
        raise InputError(
            f"{note} is missing: make the directory with python -m hsstore.integrations.prepare"
        ) from None
    except (OSError, ValidationError) as error:
        raise InputError(f"{note}: {error}") from None
    if feed.format != form:
        raise InputError(f"{directory} was prepared for {feed.format}, not for {form}")
    path = locate(store or feed.store).absolute()
    samples = ExportedSamples(path, feed.store_id, form, from_ranges(feed.samples))
    samples.source()
    return samples


def main(arguments: Sequence[str] | None = None) -> None:
    """Prepare a directory, and say what the trainer has to be told."""
    given = _parser().parse_args(arguments)
    told = prepare(
        given.store,
        given.directory.absolute(),
        given.format,
        split=given.split,
        draft_vocabulary=given.draft_vocab,
        model=given.model,
    )
    print(f"tell {given.format}:", *told, sep="\n  ")  # noqa: T201  # this is a command


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m hsstore.integrations.prepare",
        description="Write what a trainer needs beside the samples of STORE, which stay there.",
    )
    parser.add_argument("store", help="a directory, or a URL")
    parser.add_argument("directory", type=Path, help="must not exist, or be empty")
    parser.add_argument("--format", choices=FORMATS, required=True, help="whose files")
    parser.add_argument("--split", help="only samples of this split")
    parser.add_argument(
        "--draft-vocab", type=int, help="write a draft vocabulary of so many tokens; needs --model"
    )
    parser.add_argument("--model", type=Path, help="the target's directory")
    return parser


if __name__ == "__main__":
    end_with(main)
