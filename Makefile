# Every target does its own set-up: virtual environment, installation, model, test checkpoints.
# A fresh machine needs python3 (3.11 or later) and make, nothing else.

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PYTHON ?= python3

# Threads that wait spin by default and starve each other on few cores.
export OMP_WAIT_POLICY := passive
export TOKENIZERS_PARALLELISM := false
export PIP_DISABLE_PIP_VERSION_CHECK := 1

TESTS_FAST := tests/architecture tests/unit
TESTS_SLOW := $(wildcard tests/integration)
PROMPTS ?= docs/demo_prompts.jsonl

.DEFAULT_GOAL := help
.PHONY: help venv models checkpoints demo test test-full test-gpu check format bench clean

help:
	@echo "make demo       decode a real prompt and show what the draft contributed"
	@echo "make test       the test suite (under 15 minutes on 2 cores)"
	@echo "make test-full  the same and the long matrices"
	@echo "make check      ruff, mypy --strict, import-linter"
	@echo "make bench      decode speed of this engine and of transformers, side by side"

# Debian ships python3 without the venv module: then it is installed, or the command is named.
$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "draftscope needs Python 3.11 or later; set one with: make PYTHON=python3.12 ..." >&2; exit 1; }
	@test -x $(BIN)/pip || $(PYTHON) -c 'import ensurepip, venv' 2>/dev/null \
	  || { test "$$(id -u)" = 0 && apt-get update -q && apt-get install -qy python3-venv; } \
	  || { echo "the venv module of $(PYTHON) is missing; run: apt-get install python3-venv" >&2; exit 1; }
	test -x $(BIN)/pip || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q -c constraints.txt -e '.[dev]'
	@touch $@

venv: $(STAMP)

models: $(STAMP)
	$(BIN)/draftscope models pull smollm2-135m
	$(BIN)/draftscope models pull smollm2-135m-shallow

checkpoints: $(STAMP)
	$(BIN)/python -m app.testing.checkpoints

demo: $(STAMP)
	$(BIN)/draftscope models pull smollm2-135m
	$(BIN)/draftscope generate --config configs/smollm2-ngram.yaml --show-drafts \
	  --max-new-tokens 160 --prompt-file $(PROMPTS)

# Fast tests first, so that a broken basis shows itself in seconds.
test: models checkpoints
	$(BIN)/pytest $(TESTS_FAST) $(TESTS_SLOW)

test-full: models checkpoints
	$(BIN)/pytest -m "not gpu" $(TESTS_FAST) $(TESTS_SLOW)

test-gpu: models checkpoints
	$(BIN)/pytest -m gpu tests

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --strict app/
	$(BIN)/lint-imports

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Without the passive policy: on idle cores waiting by spinning is faster.
bench: models
	env -u OMP_WAIT_POLICY $(BIN)/python benchmarks/decode_vs_transformers.py

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
