# Everything a fresh machine with Python 3.11+ and git needs: `make demo`, `make test`. `make` alone lists the rest.

.DEFAULT_GOAL := help
BIN := .venv/bin
STAMP := .venv/.installed
# What users have: enough for the demo, and quicker to install than what developers need.
USABLE := .venv/.usable
# A machine with many cores need not start a Python for each of them.
WORKERS ?= auto

.PHONY: help
help: ## This list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: install
install: $(STAMP) ## Make .venv with everything, pinned (PYTHON=… names the interpreter)

$(STAMP): pyproject.toml constraints.txt tools/install
	@PYTHON='$(PYTHON)' sh tools/install dev,demo
	@touch $(USABLE) $@

$(USABLE): pyproject.toml constraints.txt tools/install
	@PYTHON='$(PYTHON)' sh tools/install demo
	@touch $@

.PHONY: demo
demo: $(USABLE) ## A pipeline on real flights, killed and repaired, step by step, in ./demo-lake
	@$(BIN)/python examples/flights/flights_demo.py $(ARGS)

.PHONY: test
test: $(STAMP) ## All tests
	$(BIN)/pytest -m "not spark" -n $(WORKERS) --maxprocesses 4 --dist worksteal
	$(BIN)/pytest -m spark

.PHONY: test-fast
test-fast: $(STAMP) ## The tests that start no Spark and take no time
	$(BIN)/pytest -m "not spark and not slow" -n $(WORKERS) --maxprocesses 4 --dist worksteal

.PHONY: check
check: $(STAMP) ## Lint, format, types, import direction
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/pytest -q tests/test_imports.py

.PHONY: format
format: $(STAMP) ## Format the code and fix what the linter can
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

.PHONY: docs
docs: $(STAMP) ## The documentation as a site, in ./site
	@$(BIN)/python tools/docs_site.py

.PHONY: bench
bench: $(STAMP) ## The benchmarks; run one with make bench-NAME
	@$(BIN)/python tools/benchmarks.py

.PHONY: bench-all
bench-all: $(STAMP) ## All benchmarks in one table, with curves (ARGS=--full for real sizes)
	$(BIN)/python bench/all.py $(ARGS)

bench-%: $(STAMP)
	$(BIN)/python bench/$*.py $(ARGS)

.PHONY: clean
clean: ## Remove what was made here, but not .venv
	rm -rf demo-lake examples/*/files examples/*/lake examples/flights/inbox examples/flights/deliveries
	rm -rf build dist site bench-results spark-warehouse metastore_db derby.log
	rm -rf .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find src tests bench examples tools -name __pycache__ -type d -prune -exec rm -rf {} +
