"""A real SGLang under `hsstore serve`: its command, its process, and when it is ready.

Nothing of SGLang is imported here: it may live in another virtual environment. What captures inside
it is the plugin in `patches/hsstore_sglang`. The entry point is `serve.serve`; nothing is imported here, for the
doctor needs `log` alone, and soon.
"""
