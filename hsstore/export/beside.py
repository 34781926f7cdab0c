"""What each trainer finds beside the samples, written last: data sets, manifests, draft vocabularies."""

from __future__ import annotations

import io
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from hsstore.export.arrow import write_data_set
from hsstore.export.target import has_index, link_with_index
from hsstore.files import fsync_directory, make_directory, output_errors, write_durably
from hsstore.formats import FORMATS
from hsstore.formats.files import write_file
from hsstore.formats.names import SampleNames

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    import numpy.typing as npt

    from hsstore.export.target import Target
    from hsstore.spec import FinalState
    from hsstore.store import Store

MOST_TOKENS = 1 << 20
"""Of any vocabulary, where it is not known."""
VOCABULARY_FILES = {
    "specforge": "vocab_mapping/vocab_mapping.pt",
    "modelopt": "d2t.pt",
    "torchspec": "vocab_mapping.pt",
}


def count_tokens(
    store: Store,
    samples: npt.NDArray[np.int64],
    trainer: str,
    target: Target | None,
    draft_vocabulary: int | None,
) -> npt.NDArray[np.int64]:
    """Count how often each token is supervised in some samples, if the files beside them need it.

    Before the first sample is written: a target without these tokens is none of theirs.

    Returns
    -------
    int64 (vocabulary,)
        Empty where nobody needs it.

    Raises
    ------
    InputError
        The samples have tokens that the target has not.
    """
    if draft_vocabulary is None and trainer != "speculators":
        return np.zeros(0, np.int64)
    from hsstore.loaders.vocabulary import supervised_counts  # noqa: PLC0415  # loads torch

    chosen = np.zeros(len(store), np.bool_)
    chosen[samples] = True
    return supervised_counts(store, chosen, target.vocabulary if target else MOST_TOKENS)


@dataclass(frozen=True, slots=True)
class Beside:
    """What is known when all samples are written."""

    directory: Path
    store: Store
    trainer: str
    samples: npt.NDArray[np.int64]
    final: FinalState
    fingerprint: str
    target: Target | None
    draft_vocabulary: int | None
    counts: npt.NDArray[np.int64]
    """Of `count_tokens`."""

    def write(self) -> None:
        """Write all files; those that are there are replaced.

        Raises
        ------
        OutputError
        """
        with output_errors(self.directory):
            self._write_vocabulary()
            if writer := _WRITERS.get(self.trainer):
                writer(self)
            fsync_directory(self.directory)

    def _write_vocabulary(self) -> None:
        if self.draft_vocabulary is None:
            return
        from hsstore.loaders.vocabulary import choose_tokens  # noqa: PLC0415  # loads torch

        chosen = choose_tokens(self.counts, self.draft_vocabulary)
        maps = {"d2t": chosen.d2t.numpy(), "t2d": chosen.t2d.numpy()}
        if self.trainer == "speculators":
            for name, values in maps.items():
                path = self.directory / f"{name}-{self.draft_vocabulary}.npy"
                write_durably(path, _npy(values))
            return
        path = self.directory / VOCABULARY_FILES[self.trainer]
        make_directory(path.parent)
        write_file(path, maps["d2t"] if self.trainer == "modelopt" else maps)
        fsync_directory(path.parent)

    def write_specforge(self) -> None:
        """Give a target without an index a folder that has one."""
        if self.target is not None and not has_index(self.target.path):
            link_with_index(self.target.path, self.directory / "target")

    def write_speculators(self) -> None:
        """Write how often tokens are supervised, then the data set."""
        tokens = np.flatnonzero(self.counts)
        frequency = dict(zip(tokens.tolist(), self.counts[tokens].tolist(), strict=True))
        write_file(self.directory / "token_freq.pt", frequency)
        write_data_set(self.directory, self.store, self.samples, self.fingerprint)

    def write_torchspec(self) -> None:
        """Write the description, then the manifest: half a line in it makes all unreadable."""
        about = {"version": 1, "last_hidden_states_prenorm": self.final == "pre-norm"}
        write_durably(self.directory / "dataset.json", json.dumps(about, indent=2).encode())
        lines = [json.dumps(row) + "\n" for row in self._manifest_rows()]
        write_durably(self.directory / "manifest.jsonl", "".join(lines).encode())

    def _manifest_rows(self) -> Iterator[dict[str, Any]]:
        name, split = SampleNames(self.store), self.store.plan_array("split")
        for row, sample in enumerate(self.samples.tolist()):
            yield {
                "split": self.store.spec.dataset.split_names[split[sample]],
                "data_id": name(sample),
                "file": FORMATS["torchspec"].path(row, name(sample)),
                "seq_len": int(self.store.length[sample]),
            }


_WRITERS: dict[str, Callable[[Beside], None]] = {
    "specforge": Beside.write_specforge,
    "speculators": Beside.write_speculators,
    "torchspec": Beside.write_torchspec,
}


def _npy(values: npt.NDArray[Any]) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, values)
    return buffer.getvalue()
