"""Counts the files and functions of the package on its two main ways: `make walks`.

usage: python .ci/walks.py [train | translate] [-v]

`train` goes from the command to the first step of the optimizer, `translate` from the command to
the printed translation. Functions that are called count, module bodies and comprehensions do not.
Without a way, both are counted, each in a process of its own, and compared with the budget in
setup.cfg. `-v` lists the files in the order of their first call.
"""

import os
import pathlib
import re
import subprocess
import sys
import tempfile
import threading

import size

PACKAGE = f"{size.PACKAGE}{os.sep}"
SIZES = "--num-layers 1 --d-model 16 --num-heads 2 --d-ff 32 --epochs 1 --steps-per-epoch 1".split()


class Stop(BaseException):
    """The optimizer is about to make its first step."""


def train(folder):
    """Returns a command line that trains on two small files; its first step raises `Stop`."""
    import keras

    def apply_gradients(self, *args, **kwargs):
        raise Stop

    keras.optimizers.Optimizer.apply_gradients = apply_gradients
    for side in "ab":
        lines = (f"{side}{i % 7} {i % 28 + 1} May 19{i % 28 + 1:02}\n" for i in range(224))
        (folder / side).write_text("".join(lines))
    texts = ["--train-source", f"{folder}/a", "--train-target", f"{folder}/b"]
    return ["train", "--output", f"{folder}/run", *texts, "--valid-fraction", "0.1", *SIZES]


def translate(folder):
    """Returns a command line that translates a date with a run that has just been trained."""
    run = ["train", "--preset", "dates", "--output", f"{folder}/run", *SIZES]
    command = [sys.executable, "-m", "keras_transformer", *run]
    subprocess.run(command, check=True, cwd=size.ROOT)
    (folder / "line").write_text("9 May 1998\n")
    os.dup2(os.open(folder / "line", os.O_RDONLY), sys.stdin.fileno())
    return ["translate", f"{folder}/run"]


def walk(command):
    """Returns the functions that run, by file in the order of their first call.

    A command that fails, or a training that ends before its first step, is an error: it would be
    within any budget.
    """
    from keras_transformer.cli import main as cli

    functions = {}

    def profile(frame, event, _):
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(PACKAGE):
            return
        if code.co_flags & 1 and not code.co_name.startswith("<"):  # not the body of a class
            file = functions.setdefault(code.co_filename.removeprefix(PACKAGE), set())
            file.add(code.co_qualname)

    sys.argv = ["keras-transformer", *command]
    threading.setprofile(profile)
    sys.setprofile(profile)
    try:
        cli.main()
    except Stop:
        return functions
    except SystemExit as end:
        if end.code:
            raise
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    if command[0] == "train":
        raise RuntimeError("The training has ended before the first step of its optimizer.")
    return functions


def main():
    """Counts one way, or has both counted and compares them with the budget."""
    ways = {"train": train, "translate": translate}
    name = next((word for word in sys.argv[1:] if word in ways), None)
    is_verbose = "-v" in sys.argv  # `walk` replaces the arguments
    if name:
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
        with tempfile.TemporaryDirectory() as folder:
            functions = walk(ways[name](pathlib.Path(folder)))
        if is_verbose:
            for file, names in functions.items():
                print(f"  {file}  {len(names)}")
        print(f"{name}: {len(functions)} files, {sum(map(len, functions.values()))} functions")
        sys.stdout.flush()
        os._exit(0)  # the threads of an interrupted training need not be waited for
    numbers = {}
    for way in ways:
        command = [sys.executable, __file__, way, *sys.argv[1:]]
        pipes = {"stdin": subprocess.DEVNULL, "capture_output": True, "text": True}
        done = subprocess.run(command, **pipes)
        if done.returncode:
            sys.exit(done.stderr)
        last = done.stdout.splitlines()[-1]
        if is_verbose:
            print(done.stdout, end="")
        numbers[f"{way}_files"], numbers[f"{way}_functions"] = map(int, re.findall(r"\d+", last))
    size.compare(numbers)


if __name__ == "__main__":
    main()
