"""Bytes out of object stores: ranges of objects, many at once, tried again when the store is slow or fails.

The one place where remote bytes come in: each read is a GET that names its object, only `find` lists. They go out in `write`.
"""

from hsstore.objects.answer import Answer, Request
from hsstore.objects.read import find, read, read_many

__all__ = ["Answer", "Request", "find", "read", "read_many"]
