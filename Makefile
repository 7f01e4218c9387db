# Two commands do everything on a machine with Python 3.11 or newer, its venv module and make:
#   make demo    draw a synthetic COCO, pack it, train a small captioner on it with 2 ranks
#   make test    every check and test of this project
# `make proof` takes long: it measures what README claims and writes benchmarks/results/.

PYTHON ?= python3
BIN := .venv/bin
RUN := $(BIN)/python

.PHONY: demo test lint proof clean

demo: .venv/installed
	$(RUN) tools/demo.py

test: lint
	$(RUN) -m pytest -n 2 --dist loadfile

lint: .venv/tested
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

proof: .venv/tested
	$(RUN) benchmarks/proof.py

.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	touch $@

.venv/tested: .venv/installed
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[test]'
	touch $@

clean:
	rm -rf .venv .demo
