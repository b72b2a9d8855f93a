"""Requests that come at the same time: how many a second, and how long each one waits.

    python -m benchmarks.load ENGINE FOLDER

is the process of one engine: for each line of stdin, numbers of clients and of requests, it has so
many clients ask for one sentence after another, and prints what came of it.
"""

import concurrent.futures
import itertools
import json
import os
import runpy
import subprocess
import sys
import tempfile
import time

CLIENTS = 1, 2, 4, 8, 16
WARM_UP, REQUESTS = 200, 400  # the latter of each number of clients
LAST = 20_000  # requests, after which memory is compared with that after the first 1,000
STEPS = 16  # tokens of each translation
SENTENCES = 1_000


def measure(corpus, shape):
    """Prints a table of our export and of CTranslate2 under load, both from text to text.

    Args:
        corpus: Directory of the tokenised Multi30k.
        shape: Name of one of `SHAPES`, of 8,000 ids; the weights are random, each translation
            takes as many steps.

    Returns:
        List of dicts, the rows.
    """
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        _prepare(corpus, shape, folder)
        workers = {name: _Worker(engine, folder) for name, engine in ENGINES.items()}
        for clients in CLIENTS:
            for name, worker in workers.items():
                rows.append({"system": name, "clients": clients} | worker.ask(clients, REQUESTS))
        (early,) = (row["memory"] for row in rows if (row["system"], row["clients"]) == (OURS, 2))
        asked = WARM_UP + REQUESTS * len(CLIENTS)
        late = workers[OURS].ask(CLIENTS[-1], LAST - asked)["memory"]
        for worker in workers.values():
            worker.close()
    print(_table(rows))
    first = WARM_UP + REQUESTS * 2
    print(f"\nmemory of ours after {first:,} and {LAST:,} requests: {early}, {late} MiB")
    return rows


def _prepare(corpus, shape, folder):
    """Writes sentences, our export, its signatures and the CTranslate2 model into a folder."""

    import keras_transformer as kt
    from benchmarks.ours import make_model
    from benchmarks.real_text import file
    from benchmarks.shapes import SHAPES
    from keras_transformer.data.text_files import read_lines
    from keras_transformer.presets import ExportConfig
    from keras_transformer.serving.structure import read_signatures
    from keras_transformer.tools.ctranslate2 import export_ctranslate2

    shape = SHAPES[shape]
    lines = [line for side in ("en", "de") for line in read_lines(file(corpus, "train", side))]
    tokenizer = kt.SubwordTokenizer.train(lines, shape.vocabulary)
    translator = kt.Translator(make_model(shape), tokenizer, tokenizer)
    config = ExportConfig(signatures=(), max_output_length=STEPS)
    path = kt.export(translator, os.path.join(folder, "served"), config=config)
    export_ctranslate2(translator, os.path.join(folder, "ctranslate2"))
    sentences = read_lines(file(corpus, "test", "en"))[:SENTENCES]
    with open(os.path.join(folder, "load.json"), "w", encoding="utf-8") as file:
        json.dump([path, read_signatures(path), sentences], file)


class _Worker:
    def __init__(self, engine, folder):
        from keras_transformer.serving.server_process import ENVIRONMENT

        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.load", engine, folder],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | ENVIRONMENT | {"TF_CPP_MIN_LOG_LEVEL": "3"},
            text=True,
        )
        self.ask(2, WARM_UP)

    def ask(self, clients, requests):
        print(clients, requests, file=self._process.stdin, flush=True)
        return json.loads(self._process.stdout.readline())

    def close(self):
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


def _table(rows):
    lines = ["| clients | system | requests a second | p50 | p95 | p99, ms | MiB |"]
    lines += ["|---|---|---|---|---|---|---|"]
    for row in rows:
        waits = " | ".join(f"{row[name]:.0f}" for name in ("p50", "p95", "p99"))
        rate = f"{row['rate']:.1f}"
        lines.append(f"| {row['clients']} | {row['system']} | {rate} | {waits} | {row['memory']} |")
    return "\n".join(lines)


# What runs in the process of an engine.


def ours(path, signatures, folder):
    """The export in TensorFlow's C++ loader, as `export/README.md` has a server do it."""
    import sysconfig

    site_packages = sysconfig.get_paths()["purelib"]
    c_api = runpy.run_path("keras_transformer/serving/c_api.py")
    ops = "tensorflow_text/python/ops/_sentencepiece_tokenizer.so"
    server = c_api["Server"](site_packages, path, signatures, [os.path.join(site_packages, ops)])
    return lambda text: server.run([text])["text"]


def ctranslate2(path, signatures, folder):
    """CTranslate2 with as many workers as cores, each on one."""
    import sentencepiece
    from ctranslate2 import Translator

    model = os.path.join(folder, "ctranslate2")
    engine = Translator(
        model, compute_type="float32", inter_threads=os.cpu_count(), intra_threads=1
    )
    pieces = sentencepiece.SentencePieceProcessor(os.path.join(model, "source.spm"))
    length = {"min_decoding_length": STEPS, "max_decoding_length": STEPS, "beam_size": 1}

    def translate(text):
        (result,) = engine.translate_batch([pieces.encode(text, out_type=str)], **length)
        return pieces.decode(result.hypotheses[0])

    return translate


OURS = "ours exported, XLA off"
ENGINES = {OURS: "ours", "CTranslate2 float32": "ctranslate2"}


def _memory():
    """What this process has in memory now, in MiB."""
    with open("/proc/self/status") as file:
        return int(file.read().partition("VmRSS:")[2].split()[0]) // 1024


def _load(translate, sentences, clients, requests):
    numbers = itertools.count()

    def client(_):
        waits = []
        while (number := next(numbers)) < requests:
            started = time.perf_counter()
            translate(sentences[number % len(sentences)])
            waits.append(1e3 * (time.perf_counter() - started))
        return waits

    started = time.perf_counter()
    with concurrent.futures.ThreadPoolExecutor(clients) as pool:
        waits = sorted(sum(pool.map(client, range(clients)), []))
    rate = requests / (time.perf_counter() - started)
    found = {f"p{p}": waits[min(len(waits) - 1, len(waits) * p // 100)] for p in (50, 95, 99)}
    return {"rate": rate, "memory": _memory()} | found


def main(engine, folder):
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # some libraries talk on stdout
    with open(os.path.join(folder, "load.json"), encoding="utf-8") as file:
        path, signatures, sentences = json.load(file)
    translate = globals()[engine](path, signatures, folder)
    for line in sys.stdin:
        print(json.dumps(_load(translate, sentences, *map(int, line.split()))), file=answers)
        answers.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
