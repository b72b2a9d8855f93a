"""A process that holds one system and runs it when told to.

    python -m benchmarks.worker MODULE FUNCTION OPTIONS

FUNCTION of benchmarks.MODULE is called with OPTIONS, a JSON object, and returns what is to be
timed: a function without arguments, whose attribute `seconds`, if it has one, is how long its last
call took. That runs once for warming up; how many seconds it took, with making and compiling of
graphs, is printed; and for each line of stdin it runs again, as often as fills half a second,
followed by a JSON object of `seconds`, the time of one call, what the function returned as
`result`, and `memory`, the most that the process has had, in MiB: on a GPU, of its memory.
"""

import importlib
import json
import os
import sys
import time

ROUND = 0.5  # seconds: a call of milliseconds, on its own, would be timed as the process wakes up


def largest_memory():
    """The most this process has had, in MiB; getrusage counts the parent's before exec as well."""
    torch, tensorflow = map(sys.modules.get, ("torch", "tensorflow"))
    if torch and torch.cuda.is_available():
        return torch.cuda.max_memory_allocated() // 2**20
    if tensorflow and tensorflow.config.list_physical_devices("GPU"):
        return tensorflow.config.experimental.get_memory_info("GPU:0")["peak"] // 2**20
    with open("/proc/self/status") as file:
        return int(file.read().partition("VmHWM:")[2].split()[0]) // 1024


def main(module, function, options):
    # Some libraries talk on stdout, which here is for answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    run = getattr(importlib.import_module(f"benchmarks.{module}"), function)(**json.loads(options))
    started = time.perf_counter()
    run()
    print(time.perf_counter() - started, file=answers, flush=True)
    for _ in sys.stdin:
        calls, seconds = 0, 0.0
        while seconds < ROUND:
            started = time.perf_counter()
            result = run()
            seconds += getattr(run, "seconds", time.perf_counter() - started)
            calls += 1
        answer = {"seconds": seconds / calls, "result": result, "memory": largest_memory()}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
