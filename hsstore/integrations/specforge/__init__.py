"""SpecForge trains from a store: its `FeatureStore`, and `SampleRef`s that point into it.

From its own command line, with the store in front::

    python -m hsstore.integrations.specforge states.zarr -c run.yaml [section.field=value ...]

or in a program, through `specforge.launch.build_disagg_offline_runtime(feature_store=, refs=, ...)`.
Tensors are handed over under the names of SpecForge's files, which its normalizer renames; see
`hsstore.formats.specforge`. Tested with SpecForge 0.2.0.
"""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Any, NoReturn
from urllib.parse import urlsplit

from specforge.runtime.contracts import FeatureHandle, SampleRef
from specforge.runtime.data_plane.feature_store import FeatureStore
from typing_extensions import override

from hsstore.errors import InputError
from hsstore.integrations.samples import ExportedSamples

if TYPE_CHECKING:
    import torch

    from hsstore.location import Location

FEATURES = ("input_ids", "loss_mask", "hidden_state", "aux_hidden_state")
SCHEME = "hsstore"


class StoreFeatures(FeatureStore):  # type: ignore[misc]  # has no types
    """The complete samples of a store as SpecForge's features: read-only, nothing is kept.

    Safe to use from many threads, as its loader does.

    Parameters
    ----------
    split : str, optional
        Samples of this split alone.

    Raises
    ------
    InputError
        There is no store, no such split, or no complete sample.
    RefusedError
        The store has no final state, or none that can be brought behind the final norm.
    """

    def __init__(self, path: str | Location, *, split: str | None = None) -> None:
        self.samples = ExportedSamples.of(path, "specforge", split=split)
        self._leases = count()

    def refs(self, *, run_id: str, ttt_length: int, max_len: int) -> list[SampleRef]:
        """Return a reference to every sample, in the order of the files of an export.

        Nothing of a sample is read for that. The parameters are those of SpecForge's own reader.
        """
        samples = zip(self.samples.samples.tolist(), self.samples.length.tolist(), strict=True)
        return [
            SampleRef(
                sample_id=f"{run_id}:{row:08d}",
                run_id=run_id,
                source_task_id=None,
                feature_store_uri=f"{SCHEME}://{self.samples.store_id}/{sample}",
                feature_keys={name: name for name in FEATURES},
                feature_specs={},
                strategy="eagle3",
                num_tokens=tokens,
                metadata={
                    "format": "offline_eagle3",
                    "target_repr": "hidden_state",
                    "ttt_length": ttt_length,
                    "max_len": max_len,
                    "file_index": row,
                },
            )
            for row, (sample, tokens) in enumerate(samples)
        ]

    @override
    def get(
        self,
        sample_ref: SampleRef,
        *,
        device: torch.device | str = "cpu",
        names: list[str] | None = None,
    ) -> tuple[dict[str, torch.Tensor], FeatureHandle]:
        """Read the tensors of a sample, as the file of an export holds them."""
        uri = urlsplit(sample_ref.feature_store_uri)
        if (uri.scheme, uri.netloc) != (SCHEME, self.samples.store_id):
            raise InputError(
                f"{sample_ref.feature_store_uri} is no sample of the store {self.samples.store_id} at "
                f"{self.samples.path}"
            )
        content = self.samples.read_sample(int(uri.path[1:]))
        tensors = {name: content[name].to(device) for name in names or sample_ref.feature_keys}
        lease = f"{sample_ref.sample_id}:{next(self._leases)}"
        return tensors, FeatureHandle(sample_ref.sample_id, generation=0, lease_token=lease)

    @override
    def release(self, handle: FeatureHandle, *, reason: str = "consumed") -> None:
        """Do nothing: the tensors are the caller's."""

    @override
    def abort(self, sample_id: str, *, reason: str) -> None:
        """Do nothing: no sample is ever dropped from a store."""

    @override
    def put(
        self, tensors: dict[str, torch.Tensor], *, sample_id: str, metadata: dict[str, Any]
    ) -> NoReturn:
        """Refuse: samples come from `hsstore extract`."""
        raise InputError(f"{self.samples.path}: a store is not written by a training")

    @override
    def health(self) -> dict[str, Any]:
        """Say that nothing is held in memory."""
        return {
            "store_id": self.samples.store_id,
            "resident_samples": 0,
            "active_leases": 0,
            "resident_bytes": 0,
            "release_pending": 0,
        }
