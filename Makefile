# Every target makes the virtual environment it needs.
PYTHON ?= python3
BIN := .venv/bin
RUN := runs/demo
MODEL := export/models/demo

.PHONY: demo test test-all lint bench clean

# What users install.
.venv/installed: setup.cfg pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --editable .
	touch $@

# What developers install on top.
.venv/installed-test: .venv/installed
	$(BIN)/pip install --quiet --disable-pip-version-check --editable ".[test]"
	touch $@

# Train on dates, evaluate, export, reload without the package, translate.
demo: .venv/installed
	rm -rf $(RUN) $(MODEL)
	$(BIN)/keras-transformer train --preset dates --output $(RUN)
	$(BIN)/keras-transformer export $(RUN) $(MODEL)
	$(BIN)/python -m keras_transformer.corpora.dates 12 | $(BIN)/python export/translate.py $(MODEL)/1
	$(BIN)/keras-transformer evaluate $(MODEL)/1

test: .venv/installed-test
	$(BIN)/python -m pytest

test-all: test
	$(BIN)/python -m pytest -m slow

lint: .venv/installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

bench: .venv/installed
	$(BIN)/python tests/benchmark.py

clean:
	rm -rf .venv runs build *.egg-info
