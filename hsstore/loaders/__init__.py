"""Feed a draft model's training from a store. The one part of hsstore that needs torch."""

try:
    import torch as _torch  # noqa: F401
except ImportError as error:
    raise ImportError(
        "hsstore.loaders needs torch, which is not installed: pip install 'hsstore[torch]'"
    ) from error

from hsstore.loaders.alignment import Eagle3Batch
from hsstore.loaders.dask_route import dask_batches
from hsstore.loaders.eagle3 import Eagle3Dataset, Eagle3Sample, eagle3_collate
from hsstore.loaders.loader import StreamLoader
from hsstore.loaders.state import StreamState
from hsstore.loaders.stream import Eagle3Stream
from hsstore.loaders.tensors import read_states
from hsstore.loaders.vocabulary import DraftVocabulary, draft_vocabulary

__all__ = [
    "DraftVocabulary",
    "Eagle3Batch",
    "Eagle3Dataset",
    "Eagle3Sample",
    "Eagle3Stream",
    "StreamLoader",
    "StreamState",
    "dask_batches",
    "draft_vocabulary",
    "eagle3_collate",
    "read_states",
]
