"""speculators' own command line, with the backend `hsstore`."""

from __future__ import annotations

from hsstore.integrations.command import end_with


def main() -> None:
    """Run speculators: its parser takes the backends that are registered when it is imported."""
    from speculators.__main__ import app  # noqa: PLC0415

    app()


if __name__ == "__main__":  # worker processes import this file again
    end_with(main)
