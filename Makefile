# make run    sets up what it needs, builds the demo tree and opens the app on it
# make test   sets up what it needs and runs the whole suite
# make check  ruff, mypy and the import contracts

PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
# pip names every index it was told of and cannot see; those lines say nothing about this project.
QUIET = 2>&1 | { grep -v "^WARNING: Location" || true; }

.PHONY: run test check bench screenshots clean

run: $(VENV)/.base
	@$(BIN)/shardyard demo

test: $(VENV)/.dev
	@$(BIN)/python -m pytest -n 2 --dist loadfile $(ARGS)

check: $(VENV)/.dev
	@$(BIN)/ruff check engine tui tests
	@$(BIN)/ruff format --check engine tui tests
	@$(BIN)/mypy
	@$(BIN)/lint-imports

bench: $(VENV)/.dev
	@$(BIN)/python -m tests.bench $(ARGS)

screenshots: $(VENV)/.base
	@$(BIN)/python screenshots/make.py

$(VENV)/bin/python:
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.base: pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "Setting up (about 10 seconds) ..."
	@set -o pipefail 2>/dev/null; $(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e . $(QUIET)
	@touch $@

$(VENV)/.dev: pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "Setting up the test environment (one to two minutes) ..."
	@DS_BUILD_OPS=0 $(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[torch,dev,interop]' $(QUIET)
	@touch $@ $(VENV)/.base

clean:
	@rm -rf $(VENV) .fixtures .mypy_cache .ruff_cache .pytest_cache
