"""From training files to `hsstore.dataset.TokenizedDataset`: ids, loss masks, splits, metadata.

::

    files ──> records ──> chat ──> tokenise ──> load
    JSONL     what the     text     ids and      filters,
    Parquet   record       and      mask         counts
    Arrow     holds        spans

The one invariant: a loss mask is proven or the sample is dropped with the reason (`chat`).
"""

from extraction.dataset.load import load_dataset
from extraction.dataset.options import DatasetOptions, DatasetReport
from extraction.dataset.tokenise import tokenizer_hash

__all__ = ["DatasetOptions", "DatasetReport", "load_dataset", "tokenizer_hash"]
