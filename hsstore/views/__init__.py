"""A store as Dask collections: the rows of its complete samples, its blocks, one row per sample.

What is complete when a view is made is in it; nothing else is. No two tasks need the same shard.
"""

from hsstore.views.array import to_dask_array
from hsstore.views.blocks import SampleBlock, to_delayed
from hsstore.views.frame import to_dataframe

__all__ = ["SampleBlock", "to_dask_array", "to_dataframe", "to_delayed"]
