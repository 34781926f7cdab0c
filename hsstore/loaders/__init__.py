"""Feed a draft model's training from a store. The one part of hsstore that needs torch."""

try:
    import torch as _torch  # noqa: F401
except ImportError as error:
    raise ImportError(
        "hsstore.loaders needs torch, which is not installed: pip install 'hsstore[torch]'"
    ) from error

from hsstore.loaders.eagle3 import Eagle3Dataset, eagle3_collate
from hsstore.loaders.tensors import read_states

__all__ = ["Eagle3Dataset", "eagle3_collate", "read_states"]
