#!/usr/bin/env bash
# Installs a real SGLang 0.5.23 for the CPU into the virtual environment $1: its unmodified wheel, a
# platform plugin of our tests that makes it use plain torch, and this project beside it.
#
# The wheel asks for CUDA builds of 6 GB that cannot even be imported here, so pip installs it without
# its dependencies, and what the CPU needs by name. About 2.3 GB and a minute; x86_64, glibc >= 2.34.
set -euo pipefail
# shellcheck source=tools/new_venv.sh
. "$(dirname "$0")/new_venv.sh"
pip install --no-deps sglang==0.5.23 torchvision==0.28.0
pip install triton==3.7.1 transformers==5.19.0 tokenizers==0.23.2 numpy fastapi "uvicorn>=0.51" \
  uvloop orjson msgspec pyzmq psutil setproctitle pybase64 pydantic aiohttp requests packaging \
  pillow prometheus-client partial_json_parser python-multipart einops sentencepiece==0.2.1 \
  compressed-tensors==0.18.0 interegular openai==2.8.0 openai-harmony==0.0.4 ipython dill \
  apache-tvm-ffi==0.1.11 gguf jsonschema xgrammar==0.2.7 soundfile==0.13.1
pip install --no-deps sglang-router==0.3.2
pip install --no-deps --editable tests/sglang/platform
pip install --no-deps --editable .
