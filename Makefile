# Every command sets up .venv by itself. PYTHON=python3.12 chooses another Python.
PYTHON ?= python3
BIN := .venv/bin

.DEFAULT_GOAL := help
.PHONY: help install run up test test-fast check format bench lock clean

help: ## list the commands
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | awk -F'\t' '{printf "  make %-10s %s\n", $$1, $$2}'

install: ## set up .venv (done by every other command when needed)
	@$(PYTHON) deploy/bootstrap.py

run: install ## everything up, and one real episode on a sample repository
	@$(BIN)/python -m worker demo

up: install ## embedded Temporal server and worker, until Ctrl-C
	@$(BIN)/python -m worker up

test: install ## all tests; starts every server it needs
	@$(BIN)/python -m pytest

test-fast: install ## unit and workflow tests only
	@$(BIN)/python -m pytest tests/unit tests/workflow tests/replay

check: install ## format, lint, layers, types
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/lint-imports
	@$(BIN)/mypy
	@$(BIN)/pyright

format: install ## format and mend what the linter can mend
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

bench: install ## figures: ratios inside one run
	@$(BIN)/python -m tests.benchmarks

lock: ## resolve all versions anew into constraints.txt
	@$(PYTHON) deploy/bootstrap.py --lock

clean: ## remove .venv and caches
	rm -rf .venv .venv-lock .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
