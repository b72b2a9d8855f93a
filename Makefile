# Each target creates the virtual environment that it needs.
PYTHON ?= python3
# The versions used for all measurements; setup.cfg also allows others. Babel decides the dates.
TENSORFLOW ?= 2.20
BABEL ?= 2.18
BIN := .venv/bin
OTHER := .venv-other/bin/python
RUN := runs/demo
MODEL := export/models/demo
TOK ?= ../shared/data/multi30k/tok
RAW ?= ../shared/data/multi30k/raw
MULTI30K ?=
RECIPE ?=
BENCH ?=
# The versions of Python that setup.cfg names, without that of PYTHON.
PYTHONS := $(filter-out $(shell $(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])'), \
    $(shell sed -n 's/.*Python :: \(3[.][0-9]*\)$$/\1/p' setup.cfg))

.PHONY: demo multi30k multi30k-cased ablations fine-tuning positions word-vectors test test-slow test-all test-numerical test-other-tensorflow test-pythons pythons parity parity-opennmt opus languages ordeal lint size walks docs notebooks bench gpu clean

# The package with the extra `all`, as users install it.
.venv/installed: setup.cfg pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --editable ".[all]" \
	    "tensorflow==$(TENSORFLOW).*" "babel==$(BABEL).*"
	touch $@

# Additional packages for tests.
.venv/installed-test: .venv/installed
	$(BIN)/pip install --quiet --disable-pip-version-check --editable ".[test]"
	touch $@

# Additional packages for make docs.
.venv/installed-docs: .venv/installed
	$(BIN)/pip install --quiet --disable-pip-version-check --editable ".[docs]"
	touch $@

# Packages that make bench compares with: PyTorch, Transformers, CTranslate2, KerasHub.
.venv/installed-bench: .venv/installed-test
	$(BIN)/pip install --quiet --disable-pip-version-check --editable ".[bench]"
	touch $@

# Packages whose outputs make parity compares with ours.
.venv/installed-parity: .venv/installed-test
	$(BIN)/pip install --quiet --disable-pip-version-check --editable ".[parity]"
	touch $@

# Trains on dates, exports, translates without the package, and evaluates the export.
demo: .venv/installed
	rm -rf $(RUN) $(MODEL)
	$(BIN)/keras-transformer train --preset dates --output $(RUN)
	$(BIN)/keras-transformer export $(RUN) $(MODEL)
	$(BIN)/python -m keras_transformer.data.dates 12 | $(BIN)/python export/translate.py $(MODEL)/1
	$(BIN)/keras-transformer evaluate $(MODEL)/1

# The published benchmark on tokenized and lowercased text, and the same recipe on raw text: hours
# on two cores. TOK, RAW: directories of the corpus; RECIPE: options in addition to the preset, such
# as RECIPE="--seed 2" or RECIPE=--resume; MULTI30K: the run directory (default: runs/<target>).
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

# An ablation study of that recipe with short trainings: about five hours on two cores.
ablations: .venv/installed
	$(BIN)/python -m benchmarks.ablations $(TOK) runs/ablations $(RECIPE)

# Training on half of the pairs and fine-tuning on the rest, compared with training on all pairs.
fine-tuning: .venv/installed
	$(BIN)/python -m benchmarks.fine_tuning $(TOK) runs/fine-tuning $(RECIPE)

# Compares positional encodings on Multi30k and on texts longer than those of training.
positions: .venv/installed
	$(BIN)/python -m benchmarks.position_trainings $(TOK) runs/positions $(RECIPE)

# Training on few pairs with and without pretrained word vectors: six short trainings.
word-vectors: .venv/installed-test
	$(BIN)/python -m benchmarks.word_vectors $(TOK) runs/word-vectors $(RECIPE)

# One process per core, because most of the time is graph tracing. A file's tests share a process.
# pytest itself needs a stdin: in the background it may be closed.
test: .venv/installed-test
	$(BIN)/python -m pytest -n auto --dist loadfile < /dev/null

test-slow: .venv/installed-test
	$(BIN)/python -m pytest -n auto --dist worksteal -m slow < /dev/null

test-all: test test-slow

# The numerical tests with the oneDNN setting that is not this machine's default, and one thread.
test-numerical: .venv/installed-test
	$(BIN)/python tests/support/other_settings.py -n auto

# Recomputes the outputs of other systems and compares them with those stored in the tests;
# PARITY=--write replaces the stored ones.
parity: .venv/installed-parity
	$(BIN)/python -m benchmarks.parity $(PARITY)

# The same for OpenNMT-tf, in its own environment.
parity-opennmt: .venv-opennmt/installed
	.venv-opennmt/bin/python -m benchmarks.parity_opennmt $(PARITY)

# Downloads a model of OPUS-MT, imports it, and compares 200 translations with transformers'.
NAME ?= opus-mt-en-de
opus: .venv/installed-parity
	$(BIN)/python benchmarks/real_model.py $(NAME) $(OPUS)

# The same with a model of many languages: make languages NAME=facebook/m2m100_418M FROM=en INTO=de
FROM ?= eng_Latn
INTO ?= deu_Latn
languages: NAME = facebook/nllb-200-distilled-600M
languages: .venv/installed-parity
	$(BIN)/python benchmarks/real_model.py $(NAME) --source-language $(FROM) --target-language $(INTO) \
	    $(LANGUAGES)

# The TensorFlow version that setup.cfg allows and .venv does not have.
.venv-other/installed: .venv/installed-test
	$(PYTHON) -m venv .venv-other
	.venv-other/bin/pip install --quiet --disable-pip-version-check --editable ".[all,test]" \
	    $$($(BIN)/python -m tests.serving.test_other_tensorflow other)
	touch $@

# Runs the TensorFlow tests with it, and tests that each version loads the other's exports.
test-other-tensorflow: .venv-other/installed
	$(OTHER) -m pytest -n auto --dist loadfile $(addprefix tests/,serving tokenizers translation \
	    decoding training data layers runs)
	OTHER_TENSORFLOW=$(OTHER) $(BIN)/python -m pytest -m ordeal tests/serving/test_other_tensorflow.py

# With the other versions of Python: what make demo does, in a few steps, and the tests of what
# depends on the version: signatures and dataclasses that become options and files, lazy imports,
# gzip, threads, pickles. A minute each. PYENV_VERSION is for pyenv.
PYTHON_TESTS := $(addprefix tests/,cli/test_main.py data/test_text_files.py \
    presets/test_options.py runs/test_run.py test_light_base.py tokenizers/test_subword.py \
    translation/test_sentences.py)
test-pythons: $(PYTHONS:%=test-python%)

# Their environments.
pythons: $(PYTHONS:%=.venv-%/installed)

$(PYTHONS:%=.venv-%/installed): .venv-%/installed: setup.cfg pyproject.toml
	PYENV_VERSION=$* python$* -m venv .venv-$* || \
	    (echo "Install Python $*, which setup.cfg names: it is tested, too."; false)
	.venv-$*/bin/pip install --quiet --disable-pip-version-check --editable ".[all,test]" \
	    "tensorflow==$(TENSORFLOW).*" "babel==$(BABEL).*"
	touch $@

.PHONY: $(PYTHONS:%=test-python%)
$(PYTHONS:%=test-python%): test-python%: .venv-%/installed
	rm -rf runs/python$*
	.venv-$*/bin/keras-transformer train --preset dates --num-layers 1 --epochs 1 \
	    --steps-per-epoch 20 --output runs/python$*
	.venv-$*/bin/keras-transformer export runs/python$* runs/python$*/models --signatures
	echo "9 May 1998" | .venv-$*/bin/keras-transformer translate runs/python$*/models
	.venv-$*/bin/python -m pytest -n auto --dist loadfile $(PYTHON_TESTS) < /dev/null

# Environments of the engines of export/bulk, without this package, as on their workers.
.venv-%/installed: setup.cfg
	$(PYTHON) -m venv .venv-$*
	.venv-$*/bin/pip install --quiet --disable-pip-version-check ".[$*]" "tensorflow==$(TENSORFLOW).*"
	.venv-$*/bin/pip uninstall --quiet --yes keras-encoder-decoder
	touch $@

# TensorFlow.js with its converter, which requires TensorFlow 2.19, and Node.
.venv-tfjs/installed:
	$(PYTHON) -m venv .venv-tfjs
	.venv-tfjs/bin/pip install --quiet --disable-pip-version-check tensorflowjs==4.22.0 "ydf<0.12"
	npm install --silent --no-audit --no-fund --prefix .venv-tfjs @tensorflow/tfjs@4.22.0
	touch $@

# Tests that take too long for CI: building wheel and sdist, installing and using them in empty
# environments, running exports with the other TensorFlow version, Apache Beam and Spark, and
# TensorFlow.js where there is npm.
ordeal: .venv-other/installed .venv-beam/installed .venv-spark/installed \
    $(if $(shell command -v npm),.venv-tfjs/installed)
	OTHER_TENSORFLOW=$(OTHER) BEAM=$(CURDIR)/.venv-beam/bin/python \
	    SPARK=$(CURDIR)/.venv-spark/bin/python TFJS=$(CURDIR)/.venv-tfjs \
	    $(BIN)/python -m pytest -m ordeal --durations=0

lint: .venv/installed-test size walks
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports setup.cfg

# The size of the package, and the files and functions on its main ways (`WALKS=-v` lists them),
# must be within the budget in setup.cfg.
size: .venv/installed-test
	$(BIN)/python .ci/size.py

walks: .venv/installed-test
	$(BIN)/python .ci/walks.py $(WALKS)

# Builds README.md, docs/, the notebooks and the reference: site/index.html. Warnings are errors,
# such as broken links and docstrings that describe unknown arguments.
docs: .venv/installed-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet

# Runs the notebooks, so that make docs shows their output: three minutes.
notebooks: .venv/installed-docs
	$(BIN)/python -m nbconvert --to notebook --execute --output-dir runs/notebooks notebooks/*.ipynb

# Compares all systems: an hour on two cores. BENCH="--parts decoding --shapes small" selects parts,
# BENCH="--run runs/multi30k" adds real text.
bench: .venv/installed-bench
	$(BIN)/python -m benchmarks $(BENCH)

# Checks and times training and decoding on a GPU, beside PyTorch: docs/gpu.md. GPU="--multi30k DIR"
# trains the preset tiny too. Without a GPU, GPU=--tiny tries it out.
gpu: .venv/installed-bench
	$(BIN)/python -m benchmarks.gpu $(GPU)

# OpenNMT-tf requires TensorFlow 2.13 and Python 3.11 or older, so it has a separate environment for
# make bench BENCH="--opennmt-tf .venv-opennmt/bin/python" and make parity-opennmt. TensorFlow Text
# comes without its requirements, which would install tensorflow beside tensorflow-cpu.
.venv-opennmt/installed:
	$(PYTHON) -m venv .venv-opennmt
	.venv-opennmt/bin/pip install --quiet --disable-pip-version-check \
	    OpenNMT-tf==2.32.0 tensorflow-cpu==2.13.1 "numpy<1.25" sentencepiece
	.venv-opennmt/bin/pip install --quiet --disable-pip-version-check --no-deps \
	    tensorflow-text==2.13.0rc0 tensorflow-hub==0.13.0
	touch $@

clean:
	rm -rf .venv .venv-* runs build site *.egg-info
