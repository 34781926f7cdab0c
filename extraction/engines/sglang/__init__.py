"""A real SGLang under `hsstore serve`: its command, its process, and when it is ready.

Nothing of SGLang is imported here: it may live in another virtual environment. What captures inside
it is the plugin in `patches/hsstore_sglang`.
"""

from extraction.engines.sglang.options import SglangOptions
from extraction.engines.sglang.serve import print_command, serve

__all__ = ["SglangOptions", "print_command", "serve"]
