# Two commands set everything up: `make demo` and `make test`. `make help` names the rest.
PYTHON ?=
WORKERS ?= 2
VENV := .venv/bin

export PYTHON

.DEFAULT_GOAL := help
.PHONY: help demo test test-long check format bench clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: ## set up what the demo needs, then train, capture, list, mount and restore
	@bash tools/setup.sh demo
	@$(VENV)/python demo/tour.py

test: ## set up what the tests need, then run the normal suite
	@bash tools/setup.sh test
	@$(VENV)/python -m pytest -n $(WORKERS) $(ARGS)

test-long: ## the normal suite and the long sweeps (an hour and more)
	@bash tools/setup.sh test
	@$(VENV)/python -m pytest -n $(WORKERS) --long $(ARGS)

check: ## ruff, mypy in strict mode, import contracts
	@bash tools/setup.sh test
	@$(VENV)/python -m ruff check .
	@$(VENV)/python -m ruff format --check .
	@$(VENV)/python -m mypy
	@$(VENV)/python -m mypy demo/train.py demo/tour.py
	@$(VENV)/lint-imports

format: ## let ruff format and mend the code
	@bash tools/setup.sh test
	@$(VENV)/python -m ruff check --fix .
	@$(VENV)/python -m ruff format .

bench: ## measure against cp and borg on this machine (minutes; see benchmarks/README.md)
	@bash tools/setup.sh bench
	@$(VENV)/python benchmarks/bench_store.py
	@$(VENV)/python benchmarks/bench_small_files.py

clean: ## remove the virtual environment, caches and what the demo left
	@rm -rf .venv .demo build *.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
