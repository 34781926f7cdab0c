"""Merge stores, and parts of stores, into one: complete samples, in a chosen order and encoding."""

from hsstore.consolidate.consolidate import Options, consolidate
from hsstore.consolidate.request import Filter

__all__ = ["Filter", "Options", "consolidate"]
