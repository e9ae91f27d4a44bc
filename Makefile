# Everything a fresh machine with Python 3.11+ and git needs: `make demo`, `make test`. `make` alone lists the rest.

.DEFAULT_GOAL := help
BIN := .venv/bin
STAMP := .venv/.installed
# What users have: enough for the demo, and quicker to install than what developers need.
USABLE := .venv/.usable
# A machine with many cores need not start a Python for each of them.
WORKERS ?= $(shell python3 -c 'import os; print(min(os.cpu_count() + 1, 5))')
MINUTES ?= 60
# Without bytecode every process that a test starts would compile the package again.
unexport PYTHONDONTWRITEBYTECODE

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

# The worker with Spark's tests mostly waits for the JVM, so there is one worker more than cores.
PYTEST := $(BIN)/pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder

.PHONY: test
test: $(STAMP) ## All tests: 10 to 17 minutes on two cores
	$(PYTEST)

.PHONY: test-fast
test-fast: $(STAMP) ## The quick tests, without JVM and processes: 2 minutes
	FLOODMARK_TEST_PROFILE=quick $(PYTEST) -m "not spark and not process and not slow"

.PHONY: soak
soak: $(STAMP) ## The random tests with new seeds (MINUTES=60, SEED=… and TEST=… repeat a failure)
	@$(BIN)/python tools/soak.py --minutes $(MINUTES) $(if $(SEED),--seed $(SEED)) $(if $(TEST),--test '$(TEST)')

.PHONY: mutants
mutants: $(STAMP) ## Break the product in many places; each time the tests must turn red
	@$(BIN)/python tools/mutants.py $(ARGS)

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
