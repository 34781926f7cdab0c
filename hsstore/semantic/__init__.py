"""Prove that states belong to the tokens they are stored with; no model forward is needed."""

from hsstore.semantic.check import check_semantics

__all__ = ["check_semantics"]
