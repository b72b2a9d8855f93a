"""Times this package beside what users would pick instead, in one run: `make bench`.

Systems take turns, each in a process of its own with all cores. Times on a shared machine mean
little by themselves: the ratios of medians are what to look at.
"""

import dataclasses
import json
import os
import platform
import shutil
import sys
from importlib import metadata
from typing import Literal

from benchmarks import corpora, load, workers
from benchmarks.options import read_options
from benchmarks.positions import positions
from benchmarks.report import bars, plot_scaling, table
from benchmarks.side_by_side import System, time_systems

PACKAGES = "tensorflow keras keras-hub torch transformers ctranslate2".split()
PART = Literal[
    *("training", "decoding", "beam", "text", "scaling", "load", "corpora", "workers"),
    *("positions", "tensorflow", "imported"),
]
SHAPE = Literal["small", "base", "tiny", "toy"]


@dataclasses.dataclass(frozen=True)
class Options:
    """Times this package beside what users would pick instead.

    Args:
        parts: What to measure.
        shapes: Sizes of the models; see benchmarks/shapes.py.
        rounds: Timed rounds, after one for warming up.
        steps: Updates in a round of training, under Keras in one call (`steps_per_execution`).
        corpus: Directory of the tokenised Multi30k, for the parts text and load.
        run: A run trained on it; without one, the part text is left out.
        opennmt_tf: Python of an environment with OpenNMT-tf 2.32, which needs an older TensorFlow
            (`make .venv-opennmt/installed` makes one); without it, that system is left out.
        other_tensorflow: Python of an environment with another TensorFlow, for the part tensorflow
            (`make .venv-other/installed` makes one).
        pairs: Of the part corpora: how many are read, and how many tokenized.
        before: For it, a checkout of commit 11ad664, to read text with as it was read there.
        output: Directory for results.json and scaling.png.
    """

    parts: tuple[PART, ...] = ("training", "decoding", "beam", "text", "scaling")
    shapes: tuple[SHAPE, ...] = ("small", "base")
    rounds: int = 5
    steps: int = 4
    corpus: str = "../shared/data/multi30k/tok"
    run: str | None = None
    opennmt_tf: str | None = None
    other_tensorflow: str | None = None
    pairs: tuple[int, int] = (10_000_000, 500_000)
    before: str | None = None
    output: str = "runs/benchmark"


def main(options: Options) -> None:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    if options.rounds < 1 or options.steps < 1:
        sys.exit("--rounds and --steps must be at least 1.")
    if options.opennmt_tf and not shutil.which(options.opennmt_tf):
        sys.exit(f"There is no {options.opennmt_tf}: `make .venv-opennmt/installed` makes one.")
    versions = {name: _version(name) for name in PACKAGES}
    machine = {"processor": _processor(), "cores": os.cpu_count(), "versions": versions}
    print(f"{machine['processor']}, {machine['cores']} cores, ", end="")
    print(f"load average {os.getloadavg()[0]:.1f}; ", end="")
    print(", ".join(f"{name} {version}" for name, version in versions.items() if version))
    os.makedirs(options.output, exist_ok=True)
    path = os.path.join(options.output, "results.json")
    results = {}
    for title, systems in measurements(options):
        systems = [system for system in systems if system.python]
        timings = time_systems(systems, options.rounds)
        results[title] = timings
        print(f"\n{title}, {options.rounds} rounds\n\n{table(timings)}", flush=True)
        # Each time, so that a benchmark cut off leaves what it has found.
        _write(path, machine, options, results)
    loads = under_load(options) if "load" in options.parts else {}
    if "corpora" in options.parts:
        print("\ncorpora\n")
        loads["corpora"] = corpora.measure(*options.pairs, options.rounds, options.before)
    if "workers" in options.parts:
        loads["workers"] = [workers.table(shape, 10, options.rounds) for shape in ("tiny", "small")]
        print("\nworkers\n", *loads["workers"], sep="\n\n")
    if not results and not loads:
        sys.exit("Nothing was measured.")
    _write(path, machine, options, results, loads)
    if results:
        print(f"\n{bars(results, options.shapes)}")
    if "scaling" in options.parts:
        print(plot_scaling(results, os.path.join(options.output, "scaling.png")))
    print(path)


def under_load(options):
    """What `load.measure` finds, printed; nothing where there is no corpus."""
    if not os.path.isdir(options.corpus):
        print("The part load is left out: it needs --corpus.", file=sys.stderr)
        return {}
    title = "small, single sentences of Multi30k, 16 steps each"
    print(f"\nunder load, {title}\n")
    return {f"under load, {title}": load.measure(options.corpus, "small")}


def measurements(options):
    """(title, systems) of everything that is asked for."""
    parts = {"training": training, "decoding": decoding, "beam": beam, "scaling": scaling}
    parts |= {"positions": positions, "tensorflow": tensorflow}
    for part, make in parts.items():
        if part in options.parts:
            for shape in options.shapes:
                yield from make(shape, options)
    if "imported" in options.parts:
        yield from imported()
    if "text" in options.parts:
        if options.run and os.path.isdir(options.corpus):
            yield from real_text(options.corpus, options.run)
        else:
            print("The part text is left out: it needs --run and --corpus.", file=sys.stderr)


def training(shape, options):
    steps = options.steps
    work = dict(shape=shape, steps=steps)

    def ours(precision, how, environment=COMMAND, **more):
        name, more = f"ours, {precision}, {how}", work | {"precision": precision} | more
        return System(name, "ours", "training", more, steps, environment=environment)

    apart = ours("float32", "graph, as the command", apart=True)
    systems = [
        apart,
        ours("float32", "XLA", jit_compile=True),
        ours("mixed_bfloat16", "graph, as the command", apart=True),
        System("PyTorch nn.Transformer", "peers", "pytorch_training", work, steps),
        System("KerasHub layers", "peers", "keras_hub_training", work, steps),
        System("Hugging Face Marian", "peers", "marian_training", work, steps),
        System("OpenNMT-tf", "opennmt_tf", "training", work, steps, options.opennmt_tf),
    ]
    products = System(
        "products of a step", "ours", "training_products", {"shape": shape}, environment=COMMAND
    )
    product = "ours", "matrix_product", {"repetitions": 4}, 4
    peaks = [
        System("2048³ matrix product", *product),
        System("2048³ matrix product, oneDNN", *product, environment=COMMAND),
    ]
    yield f"training step, {shape}", [*systems, *peaks]
    # On their own: beside all the others they would not fit into 24 GiB.
    together = ours("float32", "graph, cores together")
    script = ours("float32", "graph, in a script", environment={})
    bare = ours("float32", "graph, cores apart, TensorFlow's oneDNN", {}, apart=True)
    yield (
        f"cores apart or together, {shape}",
        [apart, together, script, bare, products, *peaks],
    )
    twice = ours("float32", "R-Drop, as the command", apart=True, rdrop=1.0)
    yield f"R-Drop, {shape}", [apart, twice]


# What the command line sets before TensorFlow is imported.
COMMAND = {"TF_ENABLE_ONEDNN_OPTS": "1"}
ALL_CORES, ONE_CORE = ({"TF_NUM_INTRAOP_THREADS": count} for count in "01")  # for each operation


def decoding(shape, benchmark):
    for rows in (1, 32):
        options = dict(shape=shape, rows=rows)
        old = "opennmt_tf", "exported_decoding", options
        yield (
            f"greedy, {shape}, batch {rows}",
            [
                *_in_memory(options),
                System("XLA in a script", "ours", "decoding", options | {"jit_compile": True}),
                *_exported(options),
                *_ctranslate2(options),
                _ctranslate2(options | {"compute_type": "int8"})[0],
                System("Hugging Face Marian", "peers", "marian_decoding", options),
                System("OpenNMT-tf exported", *old, python=benchmark.opennmt_tf),
                System("no cache, whole batch", "ours", "decoding_without_cache", options),
                System(
                    "no cache, one by one, as the tutorial",
                    "ours",
                    "decoding_without_cache",
                    options | {"one_by_one": True},
                ),
            ],
        )


def beam(shape, _):
    options = dict(shape=shape, rows=32, beam_size=4)
    yield (
        f"beam 4, {shape}, batch 32",
        [
            *_in_memory(options),
            *_exported(options),
            *_ctranslate2(options),
            System("Hugging Face Marian", "peers", "marian_decoding", options),
        ],
    )


def imported():
    """Decoding of a model of OPUS-MT's size."""
    for rows in (1, 32):
        for beam_size in (1, 4):
            options = dict(shape="opus", rows=rows, beam_size=beam_size)
            yield (
                f"imported, beam {beam_size}, batch {rows}",
                [
                    _in_memory(options)[0],
                    _exported(options)[0],
                    _ctranslate2(options)[0],
                    _ctranslate2(options | {"compute_type": "int8"})[0],
                    System("Hugging Face Marian", "peers", "marian_decoding", options),
                ],
            )


def _in_memory(options):
    """`Translator.translate` of a model loaded unasked: by the command, and in a script."""
    text = "ours", "translation"
    return [
        System(
            "ours in memory, the command", *text, options | {"apart": True}, environment=COMMAND
        ),
        System("in a script", *text, options),
    ]


def _exported(options):
    """Our SavedModel as `export` writes it and as it advises to serve it; and otherwise."""

    def served(name, computation, environment):
        more = options | {"computation": computation}
        return System(name, "ours", "exported_decoding", more, environment=environment)

    return [
        served("ours exported, as advised", "float32", {}),
        served("exported, all cores at each operation", "float32", ALL_CORES),
        served("exported, TensorFlow's own oneDNN", "float32", {"TF_ENABLE_ONEDNN_OPTS": ""}),
        served("exported in bfloat16", "bfloat16", {}),
    ]


def _ctranslate2(options):
    """CTranslate2, likewise."""
    name, peer = f"CTranslate2 {options.get('compute_type', 'float32')}", "ctranslate2_decoding"
    return [
        System(name, "peers", peer, options),
        System(f"{name}, one core", "peers", peer, options | {"threads": 1}),
    ]


def tensorflow(shape, options):
    """The same work by this TensorFlow and by another, in turn."""
    pythons = {
        f"TensorFlow {_version('tensorflow')}": sys.executable,
        "the other TensorFlow": options.other_tensorflow,
    }
    steps = options.steps
    more = dict(shape=shape, steps=steps, apart=True)
    works = {f"training step, {shape}": ("training", more, steps)}
    for rows in (1, 32):
        more = dict(shape=shape, rows=rows, apart=True)
        works[f"greedy, {shape}, batch {rows}"] = "translation", more, 1
    for title, (function, more, work) in works.items():
        for precision in ("float32", "mixed_bfloat16"):
            how = "ours", function, more | {"precision": precision}, work
            systems = [System(name, *how, at, COMMAND) for name, at in pythons.items()]
            yield f"{title}, {precision}", systems


def scaling(shape, _):
    for axis, function, name, values in (
        ("source length", "encoding", "length", (32, 64, 128, 256, 512)),
        ("target length", "decoding", "length", (16, 32, 64, 128, 256)),
        ("batch size", "decoding", "rows", (1, 4, 16, 64)),
    ):
        fixed = {"shape": shape} | ({"length": 16} if name == "rows" else {})
        yield (
            f"{axis}, {shape}",
            [System(str(value), "scaling", function, fixed | {name: value}) for value in values],
        )


def real_text(corpus, run):
    options = dict(corpus=corpus, run=run)
    yield (
        "Multi30k, 10 steps of the preset tiny",
        [System("ours, float32, graph", "real_text", "training", options)],
    )
    yield "Multi30k, share of padding", [System("source, target", "real_text", "padding", options)]
    for beam_size in (1, 5):
        together = options | {"beam_size": beam_size}
        apart = together | {"apart": True}
        name, peer = "CTranslate2 float32", "ctranslate2_translation"
        systems = [
            System("ours in memory, cores apart", "real_text", "translation", apart),
            System("ours in memory, cores together", "real_text", "translation", together),
            System(f"{name}, cores apart", "real_text", peer, apart),
            System(f"{name}, cores together", "real_text", peer, together),
        ]
        if beam_size == 1:
            name, served = "ours exported, XLA off", ("real_text", "exported_translation", options)
            systems += [
                System(name, *served, environment=ALL_CORES),
                System(f"{name}, one core", *served, environment=ONE_CORE),
            ]
        yield f"Multi30k test, text to text, beam {beam_size}", systems


def _write(path, machine, options, results, loads=None):
    found = {title: [vars(t) for t in timings] for title, timings in results.items()}
    everything = {"machine": machine, "rounds": options.rounds, "results": found | (loads or {})}
    with open(path, "w", encoding="utf-8") as file:
        json.dump(everything, file, indent=1)


def _version(package):
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _processor():
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            names = [line.partition(":")[2].strip() for line in file if "model name" in line]
        return names[0]
    except (OSError, IndexError):
        return platform.processor() or platform.machine()


if __name__ == "__main__":
    main(read_options(Options))
