"""The files of a directory, and what the user and the directory say of them."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hsstore.errors import InputError
from hsstore.export.record import NAME as EXPORT_RECORD, read_record
from hsstore.formats import FORMATS, Hints
from hsstore.formats.files import UnreadableFileError, read_file
from hsstore.formats.source import WANTED_FINAL
from hsstore.importing.fetched import FetchedFiles
from hsstore.location import RemotePath
from hsstore.report import LeftKind

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hsstore.formats import Content, Format
    from hsstore.formats.sample import ForeignSample, ForeignTokens
    from hsstore.location import Location
    from hsstore.report import ExportRecord
    from hsstore.spec import FinalState

SUFFIXES = {
    "specforge": (".ckpt", ".ckpt.gz"),
    "speculators": (".safetensors",),
    "modelopt": (".pt",),
    "torchspec": (".pt",),
    "eagle": (".ckpt", ".ckpt.gz"),
    "seed": (".pt", ".pth"),
}
"""Names of files that hold samples, by format."""
NO_SAMPLES = frozenset({"d2t.pt", "t2d.pt", "vocab_mapping.pt", "token_freq.pt", "cache.pt"})
"""What lies beside them under the same suffix."""
OUTPUTS = "--layers counts outputs of 0-based decoder layers"


class NotTakenError(Exception):
    """Why a file cannot be taken; counted, never the end of a run."""

    def __init__(self, kind: LeftKind, detail: str, sample: int | None = None) -> None:
        super().__init__(detail)
        self.kind = kind
        self.sample = sample


@dataclass(frozen=True, slots=True)
class Source:
    """A directory of files of one format.

    Attributes
    ----------
    files : list of str
        Below `root`, in the order of their names.
    record : ExportRecord, optional
        What `hsstore export` has left beside them.
    """

    root: Location
    form: Format
    layers: tuple[int, ...]
    hints: Hints
    files: list[str]
    record: ExportRecord | None
    fetched: FetchedFiles | None = None
    """Where they are under a URL."""

    def tokens(self, file: str) -> ForeignTokens:
        """Read what a file holds beside its states; these are not read, where the file allows it.

        Raises
        ------
        NotTakenError
        """
        content = self._content(file)
        try:
            return self.form.read_tokens(content)
        except InputError as error:
            raise NotTakenError(LeftKind.FOREIGN, str(error)) from None

    def sample(self, file: str) -> ForeignSample:
        """Read a whole file.

        Raises
        ------
        NotTakenError
        """
        content = self._content(file)
        try:
            return self.form.read_sample(content, self.hints)
        except InputError as error:
            raise NotTakenError(LeftKind.SHAPE, str(error)) from None

    def _content(self, file: str) -> Content:
        try:
            return read_file(self._path(file), mapped=True)
        except UnreadableFileError as error:
            raise NotTakenError(LeftKind(error.kind), str(error)) from None
        except OSError as error:
            raise NotTakenError(LeftKind.UNREADABLE, error.strerror or str(error)) from None

    def _path(self, file: str) -> Path:
        if isinstance(self.root, Path):
            return self.root / file
        if self.fetched is None:
            raise ValueError("files under a URL are read through a stage")
        return self.fetched.path(file)


def open_source(
    root: Location,
    form: str,
    layers: Sequence[int] | None,
    final: FinalState | None,
    stage: Path | None = None,
) -> Source:
    """List the files of a directory, and make sure of what no file says.

    Parameters
    ----------
    layers : ints, optional
        Outputs of 0-based decoder layers, in the order of the files: ascending.
    final : str, optional
        Whether the files' final state is after the norm or before it.
    stage : Path, optional
        A directory for files that are under a URL.

    Raises
    ------
    InputError
        It is needed and not said, or something in the directory says otherwise; or there is no file.
    """
    if isinstance(root, Path) and not root.is_dir():
        raise InputError(f"{root}: no such directory")
    record = read_record(root)
    if record is not None and record.request.trainer != form:
        raise InputError(
            f"{root / EXPORT_RECORD} says that these are {record.request.trainer} files, not {form}"
        )
    wanted = _layers(root, form, layers, record)
    known = _final(root, form, final, record)
    files = sorted(_list(root, SUFFIXES[form]))
    if not files:
        raise InputError(f"{root}: no file that ends with {' or '.join(SUFFIXES[form])}")
    slots = len(wanted) + (known != "none")
    fetched = FetchedFiles(root, stage) if isinstance(root, RemotePath) and stage else None
    return Source(root, FORMATS[form], wanted, Hints(known, slots), files, record, fetched)


def _layers(
    root: Location, form: str, layers: Sequence[int] | None, record: ExportRecord | None
) -> tuple[int, ...]:
    recorded: tuple[int, ...] | None = None
    if form == "eagle":
        recorded = ()
    elif record is not None:
        recorded = record.model.layers
    if layers is None:
        if recorded is None:
            raise InputError(
                f"--layers is needed: no {form} file says which ones it holds; {OUTPUTS}"
            )
        return recorded
    if list(layers) != sorted(set(layers)):
        raise InputError(f"--layers {_text(layers)}: not ascending, as files hold them")
    if recorded is not None and tuple(layers) != recorded:
        who = (
            "EAGLE's files have no captured layers"
            if form == "eagle"
            else str(root / EXPORT_RECORD)
        )
        raise InputError(
            f"--layers {_text(layers)}: {who} says {_text(recorded) or 'none'}; {OUTPUTS}"
        )
    return tuple(layers)


def _text(layers: Sequence[int]) -> str:
    return ",".join(map(str, layers))


def _final(
    root: Location, form: str, final: FinalState | None, record: ExportRecord | None
) -> FinalState:
    """Return what the files hold; whoever says something has to agree with the user."""
    said: list[tuple[str, FinalState]] = []
    if form in WANTED_FINAL:
        said.append((f"{form} files", WANTED_FINAL[form]))
    if record is not None:
        said.append((str(root / EXPORT_RECORD), record.final))
    if form == "torchspec" and (about := _torchspec_final(root)):
        said.append((str(root / "dataset.json"), about))
    for who, what in said:
        if final not in {None, what}:
            raise InputError(f"--final {final}: {who} hold the {what} state")
    if final is None and not said:
        raise InputError(
            f"--final is needed: no {form} file says whether its final state is after the norm or before it"
        )
    return final or said[0][1]


def _torchspec_final(root: Location) -> FinalState | None:
    try:
        about = json.loads((root / "dataset.json").read_bytes())
        return "pre-norm" if about["last_hidden_states_prenorm"] else "post-norm"
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _list(root: Location, suffixes: tuple[str, ...]) -> Iterator[str]:
    for file in root.find() if isinstance(root, RemotePath) else _walk(root):
        name = file.rpartition("/")[2]
        hidden = name.startswith(".") or name in NO_SAMPLES
        if name.endswith(suffixes) and not hidden:
            yield file


def _walk(root: Path) -> Iterator[str]:
    for directory, _, names in os.walk(root):
        below = Path(directory).relative_to(root)
        yield from (str(below / name) for name in names)
