# Everything a newcomer needs, each target with its own set-up on first use. `make help` lists them.

PYTHON ?= python3
VENV   ?= .venv
# Anything pip takes, installed before the rest, so that nothing else picks one. Nothing here needs a GPU, but on Linux pip's
# default wheel brings libraries for one (gigabytes): name a CPU wheel or index to avoid them, e.g. TORCH="torch-….whl".
TORCH  ?= torch==2.13.0
# Arguments for the command behind a target, e.g. make chat ARGS="--effort low".
ARGS   ?=
# Test processes; each is kept to one thread, so this is also the number of cores in use.
JOBS   ?= 2

BIN       := $(VENV)/bin
PIP       := $(BIN)/python -m pip install -qq --disable-pip-version-check
HAS_TORCH := $(VENV)/.has-torch
HAS_BASE  := $(VENV)/.has-base
HAS_DEV   := $(VENV)/.has-dev
ONE_THREAD := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1

.DEFAULT_GOAL := help
.PHONY: help chat test test-slow lint nano docs clean
.DELETE_ON_ERROR:

help: ## Show this list
	@sed -n 's/^\([a-z][a-z-]*\):.*## \(.*\)/  make \1|\2/p' $(MAKEFILE_LIST) | awk -F'|' '{ printf "%-18s %s\n", $$1, $$2 }'

chat: $(HAS_BASE) ## Talk to the bundled model in this terminal
# As a job of its own, so that Ctrl-C reaches the conversation (which stops the answer) and not make (which would end).
	@if [ -t 0 ]; then set -m; fi; $(BIN)/openk3 chat $(ARGS); exit $$?

test: $(HAS_DEV) ## Run the tests (ARGS="tests/cli -k help" for some of them)
	@$(ONE_THREAD) $(BIN)/python -m pytest -n $(JOBS) $(ARGS)

test-slow: $(HAS_DEV) ## Run the tests that take long or need much disk
	@$(ONE_THREAD) $(BIN)/python -m pytest -n $(JOBS) -m slow $(ARGS)

lint: $(HAS_DEV) ## Check style, types and import directions
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

nano: $(HAS_DEV) ## Make the bundled model anew (needs Debian's apt-get; about an hour on two cores)
	$(BIN)/python -m openk3.models.nano.recipe prepare
	$(BIN)/python -m openk3.models.nano.recipe train
	$(BIN)/python -m openk3.models.nano.recipe evaluate
	$(BIN)/python -m openk3.models.nano.recipe export

docs: $(HAS_DEV) ## Write docs/reference anew from the code
	$(BIN)/python docs/reference/generate.py

clean: ## Remove the environment and caches, but not what was trained
	rm -rf $(VENV) dist .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find src tests docs -name __pycache__ -type d -exec rm -rf {} +

# A stamp is written when its step has succeeded, so an interrupted set-up goes on where it stopped.
$(HAS_TORCH):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "$(PYTHON) is `$(PYTHON) --version 2>&1 | head -n 1`, but OpenK3 needs Python 3.11 or newer" >&2; echo >&2; \
	  echo "hint: name another one, e.g. make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 1; }
	@echo "First use: setting up $(VENV) with $(TORCH) (a few minutes)" >&2
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) $(TORCH)
	@touch $@

$(HAS_BASE): $(HAS_TORCH) pyproject.toml
	@echo "Installing openk3 into $(VENV)" >&2
	@$(PIP) --editable .
	@touch $@

$(HAS_DEV): $(HAS_BASE) pyproject.toml
	@echo "Installing what tests, checks and training need into $(VENV)" >&2
	@$(PIP) --editable '.[dev,train]'
	@touch $@
