#!/usr/bin/env bash
# Installs the published trainers of other projects, for the CPU, and this project beside them into the
# virtual environment $1.
#
# SpecForge and speculators pin an older torch or ask for CUDA builds, so pip installs the four without
# their dependencies, and what their EAGLE-3 code imports by name. About 1.8 GB and three minutes.
set -euo pipefail
# shellcheck source=tools/new_venv.sh
. "$(dirname "$0")/new_venv.sh"
pip install --no-deps specforge==0.2.0 speculators==0.9.0 hs-connectors==0.9.0 \
  nvidia-modelopt==0.47.0 nemo-automodel==0.7.0 torchao==0.18.0
pip install transformers==5.8.1 'datasets<=5.1.0' accelerate pydantic pydantic-settings psutil pyyaml \
  safetensors requests tqdm 'numpy<=2.5.4' aiohttp httpx 'loguru<=0.7.3' 'openai>=2' typer rich \
  protobuf omegaconf 'pulp<4' regex scipy nvidia-ml-py ninja 'setuptools>=80' torchdata pillow
# As a user does, dependencies and all.
pip install --editable '.[torch]' pytest pytest-asyncio pytest-timeout pytest-xdist
