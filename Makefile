# Every command sets up .venv by itself. PYTHON=python3.12 chooses another Python.
PYTHON ?= python3
BIN := .venv/bin
# As many processes as tests/conftest.py finds right for this machine.
PARALLEL := -q -n auto

# Of a costly test with many cases one runs, drawn by the seed that the run prints; TIGHTLOOP_TEST_ALL=1 runs them all.
SAMPLE := TIGHTLOOP_TEST_CASES=1

# What fails while others run beside it runs once more alone, and is listed both times; what fails twice fails.
AGAIN := -q -n 0 --last-failed --last-failed-no-failures none --maxfail 3

# Hundreds of processes start; without bytecode each of them compiles everything again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help install run up test test-fast trials check format bench docs messages lock clean

help: ## list the commands
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | awk -F'\t' '{printf "  make %-10s %s\n", $$1, $$2}'

install: ## set up .venv (done by every other command when needed)
	@$(PYTHON) deploy/bootstrap.py

run: install ## everything up, and one real episode on a sample repository
	@$(BIN)/python -m worker demo

up: install ## embedded Temporal server and worker, until Ctrl-C
	@$(BIN)/python -m worker up

test: install ## all tests but the trials, in parallel; starts every server it needs
	@$(SAMPLE) $(BIN)/python -m pytest $(PARALLEL) || $(BIN)/python -m pytest $(AGAIN)

test-fast: install ## unit, workflow and replay tests only
	@$(BIN)/python -m pytest $(PARALLEL) tests/unit tests/workflow tests/replay

trials: install ## what takes long: kills, eight simulated hours, random plans, agents, escapes, browser
	@$(SAMPLE) $(BIN)/python -m pytest $(PARALLEL) tests/trials || $(BIN)/python -m pytest $(AGAIN) tests/trials

check: install ## format, lint, layers, types; warns about English
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/lint-imports
	@$(BIN)/mypy
	@$(BIN)/pyright
	@$(BIN)/python -m pytest --collect-only -q tests/trials >/dev/null
	@$(BIN)/python -m deploy.english $$(git merge-base HEAD origin/main 2>/dev/null || echo HEAD)

format: install ## format and fix what the linter can fix
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

bench: install ## figures: ratios inside one run
	@$(BIN)/python -m tests.benchmarks

docs: install ## write docs/reference from the code
	@$(BIN)/python -m deploy.reference

messages: install ## print every text that people may read, with its place
	@$(BIN)/python -m deploy.messages

lock: ## resolve all versions again into constraints.txt
	@$(PYTHON) deploy/bootstrap.py --lock

clean: ## remove .venv and caches
	rm -rf .venv .venv-lock .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
