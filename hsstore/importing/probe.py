"""Look into a few files before anything is written: whether they hold what the user says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from hsstore.errors import InputError
from hsstore.importing.files import NotTakenError

if TYPE_CHECKING:
    from hsstore.dtype import DTypeName
    from hsstore.importing.files import Source
    from hsstore.spec import FinalState

FILES = 16
"""Files that are tried, at most."""
DTYPES = ("bfloat16", "float16", "float32")


@dataclass(frozen=True, slots=True)
class Probe:
    """What the states of a file are like."""

    hidden: int
    dtype: DTypeName
    final: FinalState


def probe(source: Source) -> Probe:
    """Return what the first file that can be read holds.

    Raises
    ------
    InputError
        None of some files can be read as the user says.
    """
    why = ""
    for file in source.files[:FILES]:
        try:
            sample = source.sample(file)
        except NotTakenError as error:
            why = why or f"{source.root / file}: {error}"
            continue
        if (dtype := sample.states.dtype.name) not in DTYPES:
            raise InputError(
                f"{source.root / file}: states are {dtype}; a store holds {', '.join(DTYPES)}"
            )
        return Probe(sample.states.shape[2], cast("DTypeName", dtype), sample.final)
    raise InputError(f"no file can be read as {source.form.name}'s with these --layers: {why}")
