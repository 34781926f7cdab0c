"""`python -m hsstore`: the same as the command `hsstore`."""

from __future__ import annotations

from hsstore.cli import main

if __name__ == "__main__":  # worker processes of `--processes` import this module again
    main()
