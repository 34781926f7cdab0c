"""speculators trains from a store: a `HiddenStatesBackend` that is registered as `hsstore`.

Its data set, which holds tokens and masks, is written once, without states; then it trains on it::

    python -m hsstore.integrations.prepare states.zarr data --format speculators
    python -m hsstore.integrations.speculators train --hidden-states-backend hsstore --data-path data \
        --on-missing raise ...

The second is speculators' own command line: importing this module is what registers the backend. States of
a store after the final norm are brought before it, as an export does. Tested with speculators 0.9.0.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from hs_connectors import HiddenStatesBackend, HiddenStatesTransfer
from typing_extensions import override

from hsstore.errors import InputError
from hsstore.integrations.prepare import read_prepared

if TYPE_CHECKING:
    import argparse

    import torch

    from hsstore.integrations.samples import ExportedSamples

NAME = "hsstore"
FORMAT = "speculators"


class StoreTransfer(HiddenStatesTransfer):  # type: ignore[misc]  # has no types
    """Gives the states of a row of speculators' data set; can be pickled for worker processes.

    Parameters
    ----------
    samples : ExportedSamples
        In the format `speculators`.
    """

    def __init__(self, samples: ExportedSamples) -> None:
        self.samples = samples

    @override
    def get_cached(self, file_idx: int) -> dict[str, torch.Tensor]:
        """Return `hidden_states` (T, layers + 1, H), the final state before the norm, and `token_ids` (T,)."""
        return self.samples.read(file_idx)

    @override
    def get_generated(self, hs_transfer_params: dict[str, Any]) -> NoReturn:
        """Refuse: a store has what it has."""
        raise InputError(f"{self.samples.path}: states are extracted before the training")


@HiddenStatesBackend.register(NAME)
class StoreBackend(HiddenStatesBackend):  # type: ignore[misc]  # has no types
    """`--hidden-states-backend hsstore`."""

    @staticmethod
    @override
    def add_train_args(parser: argparse.ArgumentParser) -> None:
        """Add what this backend can be told."""
        parser.add_argument(
            "--hsstore-store",
            type=str,
            default=None,
            help="Where the store is, if it was moved since the data set was made.",
        )

    @staticmethod
    @override
    def add_launch_args(parser: argparse.ArgumentParser) -> None:
        """Add nothing: no server is launched for a store."""

    @staticmethod
    @override
    def from_train_args(args: argparse.Namespace, data_path: str) -> StoreTransfer:
        """Look up in the data set which samples of which store its rows are."""
        return StoreTransfer(read_prepared(Path(data_path), FORMAT, args.hsstore_store))

    @staticmethod
    @override
    def build_kv_transfer_config(args: argparse.Namespace) -> NoReturn:
        """Refuse: vLLM does not write stores."""
        raise InputError("a store is filled by hsstore extract, not by vLLM's connector")
