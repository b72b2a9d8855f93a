"""Runs tests of what is computed as other machines would: `make test-numerical`.

With oneDNN where TensorFlow leaves it off by itself, as with AVX2 only, or without it (and with
XLA's code for AVX2) where it is on; and with one thread.
"""

import os
import sys

TESTS = ["tests/kernels/test_backend.py", "tests/kernels/test_layers.py"]
TESTS += ["tests/kernels/test_fused_cross_entropy.py", "tests/layers/test_attention.py"]
TESTS += ["tests/layers/test_every_layer.py"]
# With any of them TensorFlow turns oneDNN on.
NEURAL_NETWORK_UNITS = {"avx512_vnni", "avx512_bf16", "avx_vnni", "amx_tile"}
ONE_THREAD = {"TF_NUM_INTRAOP_THREADS": "1", "TF_NUM_INTEROP_THREADS": "1"}


def other_instructions():
    """What this machine has to be told to compute as one of the other kind does."""
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        flags = next((line for line in file if line.startswith("flags")), "").split()
    if NEURAL_NETWORK_UNITS & set(flags):
        return {"TF_ENABLE_ONEDNN_OPTS": "0", "XLA_FLAGS": "--xla_cpu_max_isa=AVX2"}
    return {"TF_ENABLE_ONEDNN_OPTS": "1"}


def main(options):
    settings = other_instructions() | ONE_THREAD
    shown = (f"{name}={value}" for name, value in settings.items())
    print("numerical tests with", *shown, flush=True)
    command = [sys.executable, "-m", "pytest", "-q", *options, *TESTS]
    os.execve(sys.executable, command, os.environ | settings)


if __name__ == "__main__":
    main(sys.argv[1:])
