"""What validating costs beside training, for a model that has learned nothing and one that has.

Prints a Markdown table for a run on text files, from the corpora that it was trained and validated
by. Each number is of a second call, with graphs made already, in the run's precision; training is
not included except in the last row.

    python -m benchmarks.validation RUN [STEPS]

RUN: a run directory, such as one of the preset tiny on Multi30k. STEPS: how many are timed.
"""

import dataclasses
import sys
import time

import keras

import keras_transformer as kt
from benchmarks.timed_fit import TimedFit
from keras_transformer.data.text_files import read_pairs
from keras_transformer.runs.run import Run
from keras_transformer.runs.training_data import valid_pairs
from keras_transformer.runs.validation import RunValidation


def main(run, steps=10):
    """Times a step and every way of validating; prints the table."""
    kt.configure_threads()
    config = dataclasses.replace(Run(run).read_config(), validate_by="bleu")
    trained = kt.load(run, config.precision)
    tokenizers = trained.source_tokenizer, trained.target_tokenizer
    pairs = valid_pairs(Run(run))
    sources = [pair[0] for pair in pairs]
    keras.utils.set_random_seed(config.seed)
    untrained = type(trained.model).from_config(trained.model.get_config())
    rows = {}
    for translator in (kt.Translator(untrained, *tokenizers), trained):
        model = translator.model
        # A rate at which nothing is learned.
        model.compile(kt.EMAAdam(1e-30), kt.SmoothedCrossEntropy(0.1), jit_compile=False)
        greedy = RunValidation(config, pairs, tokenizers)
        beam = dataclasses.replace(config, validation_beam_size=5)
        beam = RunValidation(beam, pairs, tokenizers).callbacks[-1]
        ways = {
            "loss": lambda m=model, v=greedy: m.evaluate(v.dataset, verbose=0),
            "translating": lambda m=model, v=greedy: v.callbacks[-1].measure(m),
            "translating with a beam of 5": lambda m=model, v=beam: v.measure(m),
            "translating up to max_length": lambda t=translator: t.translate(sources),
        }
        for name, way in ways.items():
            rows.setdefault(f"validation: {name}", []).append(second_call(way))
        fit = make_fit(model, config, tokenizers, steps)
        rows.setdefault("training step", []).append(second_call(fit) / steps)
    print(f"{len(pairs)} pairs, {config.precision}\n\n| seconds | untrained | trained |")
    print("|---|---|---|")
    for name, values in rows.items():
        print(f"| {name} | {' | '.join(f'{value:.2f}' for value in values)} |")


def make_fit(model, config, tokenizers, count):
    """Returns a function that trains for `count` steps, as the run does."""
    pairs = read_pairs(config.train_source, config.train_target)
    options = dict(max_length=config.model.max_length, seed=config.seed)
    dataset = kt.make_dataset(pairs, *tokenizers, config.tokens_per_batch, **options)
    part = dataset.take(count).cache()
    return TimedFit(model, part)


def second_call(function):
    """Seconds of the second of two calls."""
    for _ in range(2):
        started = time.perf_counter()
        function()
    return getattr(function, "seconds", time.perf_counter() - started)


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
