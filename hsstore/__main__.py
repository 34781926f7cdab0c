"""`python -m hsstore`: the same as the command `hsstore`."""

from __future__ import annotations

from hsstore.cli import main

main()
