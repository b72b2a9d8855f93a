# Every target makes the virtual environment it needs.
PYTHON ?= python3
# Of the versions that setup.cfg allows, the one that all figures were measured with.
TENSORFLOW ?= 2.20
BIN := .venv/bin
OTHER := .venv-other/bin/python
RUN := runs/demo
MODEL := export/models/demo
TOK ?= ../shared/data/multi30k/tok
RAW ?= ../shared/data/multi30k/raw
MULTI30K ?=
RECIPE ?=
BENCH ?=

.PHONY: demo multi30k multi30k-cased ablations fine-tuning positions word-vectors test test-all test-numerical test-other-tensorflow parity ordeal lint docs notebooks bench clean

# What users install who want more than the layers.
.venv/installed: setup.cfg pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --editable ".[all]" \
	    "tensorflow==$(TENSORFLOW).*"
	touch $@

# What developers install on top.
.venv/installed-test: .venv/installed
	$(BIN)/pip install --quiet --disable-pip-version-check --editable ".[test]"
	touch $@

# What makes the pages of the guide and the reference.
.venv/installed-docs: .venv/installed
	$(BIN)/pip install --quiet --disable-pip-version-check --editable ".[docs]"
	touch $@

# What is measured beside ours: PyTorch, Transformers, CTranslate2, KerasHub.
.venv/installed-bench: .venv/installed-test
	$(BIN)/pip install --quiet --disable-pip-version-check --editable ".[bench]"
	touch $@

# Whose numbers ours are compared with.
.venv/installed-parity: .venv/installed-test
	$(BIN)/pip install --quiet --disable-pip-version-check --editable ".[parity]"
	touch $@

# Train on dates, evaluate, export, reload without the package, translate.
demo: .venv/installed
	rm -rf $(RUN) $(MODEL)
	$(BIN)/keras-transformer train --preset dates --output $(RUN)
	$(BIN)/keras-transformer export $(RUN) $(MODEL)
	$(BIN)/python -m keras_transformer.data.dates 12 | $(BIN)/python export/translate.py $(MODEL)/1
	$(BIN)/keras-transformer evaluate $(MODEL)/1

# The published benchmark, hours on two cores: tokenized and lowercased; and the same recipe on raw
# text. TOK, RAW: the directories of the corpus; RECIPE: options on top of the preset, such as
# RECIPE="--seed 2" or RECIPE=--resume; MULTI30K: the run, if not one in runs/ of the same name.
multi30k: CORPUS = $(TOK)
multi30k: KIND = .lc.norm.tok
multi30k: TOKENIZE = none
multi30k-cased: CORPUS = $(RAW)
multi30k-cased: KIND =
multi30k-cased: TOKENIZE = 13a
multi30k multi30k-cased: .venv/installed
	$(BIN)/keras-transformer train --preset tiny --bleu-tokenize $(TOKENIZE) --plot \
	    --output $(or $(MULTI30K),runs/$@) $(RECIPE) \
	    --train-source $(CORPUS)/train$(KIND).en.gz --train-target $(CORPUS)/train$(KIND).de.gz \
	    --valid-source $(CORPUS)/val$(KIND).en.gz --valid-target $(CORPUS)/val$(KIND).de.gz
	$(BIN)/keras-transformer evaluate $(or $(MULTI30K),runs/$@) --bleu-tokenize $(TOKENIZE) \
	    --beam-size 5 --length-penalty 1.4 --beam-patience inf --max-output-length 64 \
	    --source $(CORPUS)/test_2016_flickr$(KIND).en.gz \
	    --target $(CORPUS)/test_2016_flickr$(KIND).de.gz

# What each ingredient of that recipe is worth, in short trainings: an hour and a half on two cores.
ablations: .venv/installed
	$(BIN)/python -m benchmarks.ablations $(TOK) runs/ablations $(RECIPE)

# Trained on half of the pairs and fine-tuned on the other, against all at once, in short trainings.
fine-tuning: .venv/installed
	$(BIN)/python -m benchmarks.fine_tuning $(TOK) runs/fine-tuning $(RECIPE)

# What ways to say where a token is are worth, on Multi30k and in texts longer than any in training.
positions: .venv/installed
	$(BIN)/python -m benchmarks.position_trainings $(TOK) runs/positions $(RECIPE)

# Few pairs with and without word vectors of many sentences, in six short trainings.
word-vectors: .venv/installed-test
	$(BIN)/python -m benchmarks.word_vectors $(TOK) runs/word-vectors $(RECIPE)

# A process per core: most of a test's time is Python tracing graphs. A file's tests stay together.
test: .venv/installed-test
	$(BIN)/python -m pytest -n auto --dist loadfile

test-all: test
	$(BIN)/python -m pytest -n auto --dist worksteal -m slow

# The numerical tests with and without oneDNN, whichever is not this machine's own, and one thread.
test-numerical: .venv/installed-test
	$(BIN)/python tests/support/other_settings.py -n auto

# What other systems compute, again, against the numbers of theirs that tests compare with;
# PARITY=--write puts them there.
parity: .venv/installed-parity
	$(BIN)/python -m tests.support.parity $(PARITY)

# The other TensorFlow that setup.cfg allows: whichever .venv does not have.
.venv-other/installed: .venv/installed-test
	$(PYTHON) -m venv .venv-other
	.venv-other/bin/pip install --quiet --disable-pip-version-check --editable ".[all,test]" \
	    $$($(BIN)/python -m tests.support.exchange other)
	touch $@

# The tests of what TensorFlow computes, there; and whether each runs what the other has exported.
test-other-tensorflow: .venv-other/installed
	$(OTHER) -m pytest -n auto --dist loadfile $(addprefix tests/,serving tokenizers translation \
	    decoding training data layers runs)
	OTHER_TENSORFLOW=$(OTHER) $(BIN)/python -m pytest -m ordeal tests/serving/test_other_tensorflow.py

# What is too long for CI: wheel and sdist, built, installed into empty environments and used there;
# exports of one TensorFlow run by the other.
ordeal: .venv-other/installed
	OTHER_TENSORFLOW=$(OTHER) $(BIN)/python -m pytest -m ordeal --durations=0

lint: .venv/installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports setup.cfg

# The guide, from README.md, the notebooks, and the reference, from the docstrings: site/index.html.
# Warnings are errors: a link that leads nowhere, a docstring that describes what is no argument.
docs: .venv/installed-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet

# What the notebooks print and draw, for make docs to show: three minutes.
notebooks: .venv/installed-docs
	$(BIN)/python -m nbconvert --to notebook --execute --output-dir runs/notebooks notebooks/*.ipynb

# All systems side by side, an hour on two cores; BENCH="--parts decoding --shapes small" for
# a part, BENCH="--run runs/multi30k" to have real text as well.
bench: .venv/installed-bench
	$(BIN)/python -m benchmarks $(BENCH)

# OpenNMT-tf stopped at TensorFlow 2.13 (Python 3.11 at most): an environment of its own, for
# make bench BENCH="--opennmt-tf .venv-opennmt/bin/python".
.venv-opennmt/installed:
	$(PYTHON) -m venv .venv-opennmt
	.venv-opennmt/bin/pip install --quiet --disable-pip-version-check \
	    OpenNMT-tf==2.32.0 tensorflow-cpu==2.13.1 "numpy<1.25"
	touch $@

clean:
	rm -rf .venv .venv-opennmt .venv-other runs build site *.egg-info
