# Everything a newcomer runs. `make help` lists the targets.
#
# Variables:
#   PIP_ARGS  more arguments for pip, e.g. an index with CPU builds of torch (see README.md)
#   PYTHON    the interpreter that .venv is made from (default: the first python3 that is 3.11 or newer)
#   JOBS      test processes (default 2)

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.NOTPARALLEL:

VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/ready
JOBS ?= 2
PYTEST := $(BIN)/python -m pytest --numprocesses=$(JOBS) --dist=loadgroup

# The processes of a run share the machine's cores, so each of them computes on one thread.
export OMP_NUM_THREADS ?= 1
export PIP_ARGS PYTHON
# A run starts many processes: they load compiled modules instead of compiling them again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup quickstart smollm2 test test-all lint docs clean

help:
	@echo "make quickstart  set up, then train one small model on three domains (about 10 minutes)"
	@echo "make smollm2     set up, then fetch the pretrained model of examples/smollm2.yaml"
	@echo "make test        set up, then check style, types, import rules and run the tests"
	@echo "make test-all    make test with the slow and the optional tests"
	@echo "make lint        set up, then only style, types and import rules"
	@echo "make docs        write the generated pages of docs/ anew"
	@echo "make setup       only the virtual environment in $(VENV)"
	@echo "make clean       delete the virtual environment and all caches (runs/ stays)"

setup: $(READY)

$(READY): requirements.lock pyproject.toml scripts/setup.sh
	@scripts/setup.sh $(VENV) $(READY)

quickstart: setup
	$(BIN)/rollart train examples/quickstart.yaml

smollm2: setup
	$(BIN)/python -m pip install -qq --disable-pip-version-check --root-user-action=ignore $(PIP_ARGS) -r requirements-gguf.txt
	$(BIN)/python scripts/fetch_smollm2.py

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

test: lint
	$(PYTEST) -m "not slow and not optional"

test-all: lint
	$(PYTEST)

docs: setup
	$(BIN)/python scripts/generate_docs.py

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache *.egg-info build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
