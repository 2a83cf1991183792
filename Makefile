# make run    sets up what it needs, builds the demo tree and opens the app on it
# make test   sets up what it needs and runs the whole suite
# make check  ruff, mypy and the import contracts
# make bench  side by side with the tools people use today

PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin

.PHONY: run test test-without-torch check bench screenshots man clean

run: $(VENV)/.base
	@$(BIN)/shardyard demo

test: $(VENV)/.dev
	@$(BIN)/python -m pytest -n 2 --dist loadfile $(ARGS)

test-without-torch: $(VENV)/.bare
	@$(BIN)/python -m pytest -n 2 --dist loadfile -m "not interop and not services and not terminal" $(ARGS)

check: $(VENV)/.dev
	@$(BIN)/ruff check engine tui tests
	@$(BIN)/ruff format --check engine tui tests
	@$(BIN)/mypy
	@$(BIN)/lint-imports

bench: $(VENV)/.bench
	@$(BIN)/python -m tests.bench $(ARGS)

screenshots: $(VENV)/.base
	@$(BIN)/python screenshots/make.py

$(VENV)/bin/python:
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.base: pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "Setting up (about 10 seconds) ..."
	@$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e .
	@touch $@

$(VENV)/.dev: pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "Setting up the test environment (one to two minutes) ..."
	@DS_BUILD_OPS=0 $(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[torch,dev,interop]'
	@touch $@ $(VENV)/.base

$(VENV)/.bench: $(VENV)/.dev
	@DS_BUILD_OPS=0 $(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[bench]'
	@touch $@

$(VENV)/.bare: pyproject.toml constraints.txt | $(VENV)/bin/python
	@$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[test]'
	@touch $@

clean:
	@rm -rf $(VENV) .venv-* .fixtures .mypy_cache .ruff_cache .pytest_cache

# The man page in docs/, from the parsers.
man: $(VENV)/.base
	@$(BIN)/python -m shardyard.cli.manual > docs/shardyard.1
