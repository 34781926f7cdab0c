"""Prove that a store holds what it promises; read-only, and on Dask."""

from hsstore.verify.verify import verify_store

__all__ = ["verify_store"]
