"""The command line on a GPU, from training to export, and killed and resumed: `make gpu`.

    python -m benchmarks.gpu_commands [--tiny] OUTPUT [MULTI30K]

Prints a line for each command. Three chains of commands run side by side. With MULTI30K, the
tokenized corpus, the preset tiny is trained on it, whole.
"""

import concurrent.futures
import csv
import functools
import json
import os
import signal
import subprocess
import sys
import time

from benchmarks.recipes import SEARCH

COMMAND = [sys.executable, "-m", "keras_transformer"]
EXACT = {"NVIDIA_TF32_OVERRIDE": "0"}  # float32 is float32, as on the CPU
CPU = {"CUDA_VISIBLE_DEVICES": "-1"}


class Chain:
    """Commands one after the other, in a folder; stops at one that fails."""

    def __init__(self, folder, tiny):
        self.folder, self.tiny = folder, tiny

    def path(self, name):
        return os.path.join(self.folder, name)

    def run(self, title, *words, text=None, **variables):
        """Runs a command; returns its output."""
        started = time.perf_counter()
        done = subprocess.run(
            [*COMMAND, *words],
            input=text,
            env=os.environ | variables,
            capture_output=True,
            text=True,
        )
        name = title.replace(" ", "-").replace(",", "")
        with open(self.path(f"{name}.log"), "w") as file:
            file.write(done.stderr)
        report(title, done.returncode, done.stderr, started)
        if done.returncode:
            raise RuntimeError(title)
        return done.stdout

    def dates(self):
        """Trains, evaluates, exports and checks; translations on GPU and CPU are the same."""
        run, base = self.path("dates"), self.path("models")
        few = ["--epochs", "1", "--steps-per-epoch", "20"] * self.tiny
        self.run("dates: train", "train", "--preset", "dates", *few, "--output", run)
        scores = json.loads(self.run("dates: evaluate", "evaluate", run, "--json"))
        print(f"  exact match {scores['exact_match']:.1f} %", flush=True)
        if not self.tiny and scores["exact_match"] < 99:
            raise RuntimeError("dates: evaluate")
        self.run("dates: export", "export", run, base)
        self.run("dates: check", "check", base)
        text = "".join(f"{1 + i % 28} May {1950 + i}\n" for i in range(150))
        for path, more in ((run, ["--precision", "float32"]), (base, [])):
            for beam in ("1", "4") if path == run else ("1",):
                words = ["translate", path, *more, *(["--beam-size", beam] if path == run else [])]
                title = f"dates: translate {os.path.basename(path)}, beam {beam}"
                found = self.run(title, *words, text=text, **EXACT)
                expected = self.run(f"{title}, CPU", *words, text=text, **CPU)
                if found != expected:
                    raise RuntimeError(f"{title}: other translations than on the CPU")

    def killed(self):
        """Training with a mirrored strategy, and one that is killed and resumed."""
        steps = "4" if self.tiny else "200"
        words = ["train", "--preset", "dates", "--epochs", "2", "--steps-per-epoch", steps]
        mirrored = ["--strategy", "mirrored", "--output", self.path("mirrored")]
        self.run("mirrored: train", *words, *mirrored)
        whole, killed = self.path("whole"), self.path("killed")
        often = ["--save-every", "2" if self.tiny else "20"]
        self.run("whole: train", *words, *often, "--output", whole)
        started = time.perf_counter()
        words += [*often, "--output", killed]
        process = subprocess.Popen([*COMMAND, *words], stderr=subprocess.DEVNULL)
        while process.poll() is None and not has_checkpoint(killed):
            time.sleep(0.05)
        process.send_signal(signal.SIGKILL)
        code = process.wait()
        report("killed: train", int(code != -signal.SIGKILL), "", started)
        self.run("killed: resume", *words, "--resume")
        print(f"  as without a stop: {read_scores(whole) == read_scores(killed)}", flush=True)

    def multi30k(self, corpus):
        """Trains the preset tiny, and evaluates it on the test set."""
        run, files = self.path("tiny"), []
        for part, option in (("train", "train"), ("val", "valid")):
            for language, side in (("en", "source"), ("de", "target")):
                files += [f"--{option}-{side}", f"{corpus}/{part}.lc.norm.tok.{language}.gz"]
        words = ["--preset", "tiny", "--precision", "auto", "--bleu-tokenize", "none"]
        few = "--epochs 1 --steps-per-epoch 2 --num-layers 1".split() * self.tiny
        self.run("tiny: train", "train", *words, *few, *files, "--output", run)
        test = f"{corpus}/test_2016_flickr.lc.norm.tok"
        flags = [
            "--bleu-tokenize",
            "none",
            "--source",
            f"{test}.en.gz",
            "--target",
            f"{test}.de.gz",
        ]
        scores = json.loads(self.run("tiny: evaluate", "evaluate", run, *flags, *SEARCH, "--json"))
        print(f"  BLEU {scores['bleu']:.2f} on test_2016_flickr, beam 5", flush=True)


def has_checkpoint(run):
    """Whether a training has saved where to resume, after its first step."""
    state = os.path.join(run, "checkpoints", "resume.json")
    return os.path.exists(state) and any(
        name.endswith(".safetensors") for name in os.listdir(os.path.dirname(state))
    )


def report(title, code, errors, started):
    """Prints the line of a command."""
    last = (errors.strip().splitlines() or [""])[-1] if code else ""
    mark = "FAIL" if code else "ok  "
    print(f"{title:40} {time.perf_counter() - started:6.1f} s  {mark}  {last[:300]}", flush=True)


def read_scores(run):
    """Returns the history of a run, without the time that it took."""
    with open(os.path.join(run, "history.csv")) as file:
        rows = list(csv.DictReader(file))
    return [{name: value for name, value in row.items() if name != "minutes"} for row in rows]


def main(words):
    tiny = "--tiny" in words
    folder, *corpus = [word for word in words if word != "--tiny"]
    os.makedirs(folder, exist_ok=True)
    chain = Chain(folder, tiny)
    chains = [chain.dates, chain.killed]
    chains += [functools.partial(chain.multi30k, path) for path in corpus]
    failed = 0
    with concurrent.futures.ThreadPoolExecutor(1 if tiny else len(chains)) as pool:
        for future in [pool.submit(one) for one in chains]:
            if error := future.exception():
                failed += 1
                print(f"FAIL  {error}", flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
