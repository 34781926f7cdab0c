"""Drives inference servers and streams what they dump into a store.

Imports nothing: `extraction.spool` is installed into servers that have no hsstore.
"""
