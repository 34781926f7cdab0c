"""A store's samples as the files of another trainer."""

from hsstore.export.export import Options, export_store

__all__ = ["Options", "export_store"]
