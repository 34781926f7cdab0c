"""Prove that a store holds what it promises, on Dask; read-only, unless it is told to repair."""

from hsstore.verify.sampling import SampleChoice
from hsstore.verify.verify import VerifyOptions, verify_store

__all__ = ["SampleChoice", "VerifyOptions", "verify_store"]
