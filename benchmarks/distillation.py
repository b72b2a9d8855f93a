"""Small models trained on the translations of an ensemble: docs/smaller-models.md.

    python -m benchmarks.distillation CORPUS RUNS [-- option of keras-transformer train ...]

CORPUS is the folder `tok` of Multi30k. Three teachers are trained with the preset `tiny` and
translate the training text; students are trained on that, with the same options. Prints a table of
their quality, speed and size. What is there already is not made again, and what was cut off goes
on.
"""

import gzip
import json
import os
import subprocess
import sys
import tempfile

from benchmarks.ablations import COMMAND, command, train
from benchmarks.side_by_side import System, time_systems

ENDING = ".lc.norm.tok"
SEEDS = (1, 2, 3)  # of the teachers
HALF = ["--d-model", "64", "--d-ff", "128"]
DEEP = ["--norm", "pre", "--num-decoder-layers", "1", "--num-encoder-layers"]
STUDENTS = {  # whether on translations, and options of `train`
    "same size": (True, []),
    "6 + 1 layers": (True, [*DEEP, "6"]),
    "12 + 1 layers": (True, [*DEEP, "12"]),
    "half the width": (True, HALF),
    "half the width, original text": (False, HALF),
}
BEAM = "--beam-size 5 --length-penalty 1.4".split()
LIMIT = ["--max-output-length", "64"]
LINES = 1000  # of the test set, timed


def main(corpus, runs, *options):
    """Makes what is missing; prints the table."""
    os.makedirs(runs, exist_ok=True)
    teachers = [os.path.join(runs, f"teacher-{seed}") for seed in SEEDS]
    for seed, run in zip(SEEDS, teachers, strict=True):
        train(corpus, run, [*options, "--seed", str(seed)])
    translated = os.path.join(runs, "train.distilled.de")
    translate(corpus, teachers, translated)
    systems = {"a teacher": teachers[:1], "three teachers": teachers}
    for name, (distilled, changes) in STUDENTS.items():
        run = os.path.join(runs, name.replace(" ", "-").replace(",", ""))
        train(corpus, run, [*options, *changes, *["--train-target", translated] * distilled])
        systems[name] = [run]
    report(corpus, systems)


def path(corpus, part, language):
    """A file of Multi30k."""
    return os.path.join(corpus, f"{part}{ENDING}.{language}.gz")


def translate(corpus, teachers, output):
    """Translates the training text with all teachers."""
    words = [COMMAND, "translate", *teachers, *BEAM, *LIMIT, "--resume", output]
    with gzip.open(path(corpus, "train", "en")) as file:
        subprocess.run(words, input=file.read(), check=True)


def report(corpus, systems):
    """Prints quality, speed, memory and size of an export of lists of runs by name."""
    rows = []
    for name, members in systems.items():
        bleu = [
            f"{evaluate(corpus, members, part, search):.1f}"
            for part in ("val", "test_2016_flickr")
            for search in ([], BEAM)
        ]
        rows.append([name, *bleu, export_size(members)])
    for beam_size in (1, 5):  # few enough systems at a time to fit into memory
        options = {"source": path(corpus, "test_2016_flickr", "en"), "beam_size": beam_size}
        timed = [
            System(name, "distillation", "translating", options | {"runs": members})
            for name, members in systems.items()
        ]
        timings = time_systems(timed, 3)
        for row, timing in zip(rows, timings, strict=True):
            row.append(f"{LINES / timing.median:.0f}")
    for row, timing in zip(rows, timings, strict=True):
        row.append(timing.memory)
    heads = "validation, greedy|validation, beam 5|test, greedy|test, beam 5|export, MB"
    heads += "|lines a second, greedy|lines a second, beam 5|MiB of a process"
    print(f"| | {heads.replace('|', ' | ')} |", "|---" * len(rows[0]) + "|", sep="\n")
    print(*(f"| {' | '.join(map(str, row))} |" for row in rows), sep="\n")


def evaluate(corpus, members, part, search):
    """BLEU of runs on a part of Multi30k."""
    files = ["--source", path(corpus, part, "en"), "--target", path(corpus, part, "de")]
    flags = ["--bleu-tokenize", "none", "--n-bootstrap", "0", "--json", *LIMIT, *search]
    return json.loads(command("evaluate", *members, *files, *flags))["bleu"]


def export_size(members):
    """MB of an export of runs for TensorFlow Serving, with weights in float32 and in int8."""
    sizes = []
    for precision in ("float32", "int8"):
        with tempfile.TemporaryDirectory() as folder:
            output = os.path.join(folder, "export")
            command("export", *members, output, "--precision", precision, "--signatures", "beam")
            found = (
                os.path.getsize(os.path.join(place, name))
                for place, _, names in os.walk(output)
                for name in names
            )
            sizes.append(f"{sum(found) / 1e6:.1f}")
    return ", ".join(sizes)


def translating(runs, source, beam_size):
    """`Translator.translate` of the runs on lines of a compressed file."""
    import keras_transformer as kt

    kt.configure_threads()
    translator = kt.load(runs if len(runs) > 1 else runs[0])
    with gzip.open(source, "rt") as file:
        texts = [line.rstrip("\n") for _, line in zip(range(LINES), file, strict=False)]
    search = kt.SearchConfig(beam_size=beam_size, length_penalty=1.4, max_output_length=64)
    return lambda: len(translator.translate(texts, search=search))


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    main(*(word for word in sys.argv[1:] if word != "--"))
