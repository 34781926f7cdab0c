"""The SGLang plugin: hands the hidden states of a server's requests to a spool.

SGLang loads it in each of its processes through the entry point `sglang.srt.plugins`. It changes no
file of SGLang's, and does nothing at all unless `HSSTORE_SPOOL` names a spool. SGLang only logs a
plugin that fails, so everything that keeps this one from capturing is an ERROR of its own that
begins with `hsstore: not capturing`.
"""

from hsstore_sglang.settings import is_configured


def register() -> None:
    """Entry point: register the hooks, in a server that has a spool configured."""
    if is_configured():
        from hsstore_sglang.plugin import register_hooks  # noqa: PLC0415 - it needs torch

        register_hooks()
