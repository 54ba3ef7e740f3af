# Every target sets itself up from a bare checkout: a virtual environment with the package and its test extra.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: install test test-fast lint reproduce figures bench clean

install: .venv/installed

.venv/installed: pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable ".[test]"
	touch $@

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: lint
	$(BIN)/python -m pytest -n 2 --dist loadfile

test-fast: install
	$(BIN)/python -m pytest -n 2 --dist loadfile -m "not slow"

reproduce: install
	$(BIN)/jaxprivrl reproduce

figures: reproduce
	$(BIN)/python benchmarks/headline.py
	mkdir -p docs
	cp results/figure2/combined.png results/headline.png docs/
	$(BIN)/python docs/architecture.py

bench: install
	$(BIN)/python benchmarks/engine.py

clean:
	rm -rf .venv build *.egg-info .pytest_cache .ruff_cache .mypy_cache
