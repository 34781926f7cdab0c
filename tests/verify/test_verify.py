"""What verify says of healthy stores, and of each kind of damage."""

from __future__ import annotations
