"""Runs a SavedModel's signatures as TF Serving does: TensorFlow's C++ loader, no Python op.

usage: python -S -E c_api.py SITE_PACKAGES VERSION_DIR [OPS_SO ...] [--threads=N] [--unoptimized]
           [--limited] < requests > replies

TF Serving is a C++ program that reads the SavedModel with the loader in libtensorflow_cc, with
XLA switched off, and with tensorflow-text's kernels linked in. This program does the same through
TensorFlow's C API and ctypes. Under `python -S -E` it could not `import tensorflow`, so nothing of
Python can help the graph. SITE_PACKAGES locates TensorFlow's libraries, OPS_SO are those of custom
kernels. With --unoptimized, TensorFlow does not rewrite the graph, which saves seconds before the
first answer and makes each up to a quarter slower. With --limited, the process ends when it needs
more memory than the machine has, or hours of a processor: in a graph made by others, loops may not
end.

The first line of stdin holds the signatures, {name: [inputs, outputs]}, both {key: [name of the
tensor, TF_DataType]}, as JSON. Requests and replies are JSON as well, one a line, in the column
format of TF Serving's REST API:

    {"inputs": ["a cat", {"b64": "//4="}]}  ->  {"outputs": {"text": [...], "log_prob": [...]}}
    {"signature_name": "score", "inputs": {"source": ["a cat"], "target": ["eine katze"]}}
    {"inputs": "a cat"}                     ->  {"error": "..."}

Strings that are not UTF-8 are {"b64": ...}; the nesting of lists gives the tensor's rank. If the
model cannot be loaded, the only line is {"load_error": "..."}; otherwise the first line is
{"load_seconds": ...}. Replies come in the order of the requests, each as soon as possible.
"""

import base64
import contextlib
import ctypes
import json
import math
import os
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

TF_STRING = 7  # TF_DataType
NUMBERS = {1: ctypes.c_float, 3: ctypes.c_int32, 9: ctypes.c_int64}  # the other types in use
TF_STRING_BYTES = 24  # sizeof(TF_TString), the same on every 64-bit platform
DEFAULT = "serving_default"
MIN_SECONDS, BYTES_PER_SECOND = 3600, 500_000  # of a processor; the bytes are those of the weights
POINTER, INT, SIZE, TEXT = ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t, ctypes.c_char_p
INT64, TEXTS = ctypes.c_int64, ctypes.POINTER(TEXT)


class Output(ctypes.Structure):
    """TF_Output: one output of one operation."""

    _fields_ = [("operation", POINTER), ("index", INT)]


FEEDS_AND_FETCHES = 2 * [ctypes.POINTER(Output), ctypes.POINTER(POINTER), INT]

# Functions of tensorflow/c/c_api.h and its neighbours: (result, arguments).
FUNCTIONS = {
    **dict.fromkeys(("TF_NewStatus", "TF_NewGraph", "TF_NewSessionOptions"), (POINTER, [])),
    **dict.fromkeys(("TF_TensorData", "TF_StringGetDataPointer"), (POINTER, [POINTER])),
    **dict.fromkeys(("TF_GetCode", "TF_TensorType", "TF_NumDims"), (INT, [POINTER])),
    **dict.fromkeys(("TF_DeleteStatus", "TF_DeleteTensor"), (None, [POINTER])),
    **dict.fromkeys(("TF_StringInit", "TF_StringDealloc"), (None, [POINTER])),
    "TF_Message": (TEXT, [POINTER]),
    "TF_LoadLibrary": (POINTER, [TEXT, POINTER]),
    "TF_SetConfig": (None, [POINTER, TEXT, SIZE, POINTER]),
    "TF_LoadSessionFromSavedModel": (POINTER, [POINTER, POINTER, TEXT, TEXTS, INT, *[POINTER] * 3]),
    "TF_GraphOperationByName": (POINTER, [POINTER, TEXT]),
    "TF_SessionRun": (None, [POINTER, POINTER, *FEEDS_AND_FETCHES, POINTER, INT, POINTER, POINTER]),
    "TF_AllocateTensor": (POINTER, [INT, ctypes.POINTER(INT64), INT, SIZE]),
    "TF_Dim": (INT64, [POINTER, INT]),
    "TF_StringCopy": (None, [POINTER, TEXT, SIZE]),
    "TF_StringGetSize": (SIZE, [POINTER]),
}
# A ConfigProto: graph_options { rewrite_options { disable_meta_optimizer: true } }
UNOPTIMIZED = bytes([82, 5, 82, 3, 152, 1, 1])
Signatures = dict[str, Sequence[dict[str, Sequence[Any]]]]  # see the first line of stdin


class TensorFlowError(Exception):
    """A status that is not OK."""


class Server:
    """One version directory, loaded; see `main` for its arguments, `config`: a ConfigProto."""

    def __init__(
        self,
        site_packages: str,
        version_dir: str,
        signatures: Signatures,
        ops: Sequence[str] = (),
        config: bytes = b"",
    ) -> None:
        for name in ("libtensorflow_framework.so.2", "libtensorflow_cc.so.2"):
            path = os.path.join(site_packages, "tensorflow", name)
            # Global, because the op libraries look TensorFlow's symbols up there.
            self.library = ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
        for name, (result, arguments) in FUNCTIONS.items():
            function = getattr(self.library, name)
            function.restype, function.argtypes = result, arguments
        # tensorflow::DisableXlaCompilation(), as in TF Serving's main.cc.
        self.library._ZN10tensorflow21DisableXlaCompilationEv()
        for path in ops:
            with self._status() as status:
                self.library.TF_LoadLibrary(path.encode(), status)
        self.graph = self.library.TF_NewGraph()
        with self._status() as status:
            options, tags = self.library.TF_NewSessionOptions(), (TEXT * 1)(b"serve")
            self.library.TF_SetConfig(options, config, len(config), status)
            where = (version_dir.encode(), tags, len(tags), self.graph, None, status)
            self.session = self.library.TF_LoadSessionFromSavedModel(options, None, *where)
        self.signatures = signatures

    def run(self, inputs: Any, name: str = DEFAULT) -> dict[str, Any]:
        """Runs one batch: {name of an output: nested lists}; threads may do so at the same time."""
        if name not in self.signatures:
            raise TensorFlowError(f"Unknown signature {name}.")
        wanted, outputs = self.signatures[name]
        if not isinstance(inputs, dict):
            inputs = {key: inputs for key in wanted} if len(wanted) == 1 else {}
        if set(inputs) != set(wanted):
            raise TensorFlowError(f"Expected the inputs {sorted(wanted)}, got {sorted(inputs)}.")
        fed = (Output * len(wanted))(*(self._output(tensor) for tensor, _ in wanted.values()))
        fetched = (Output * len(outputs))(*(self._output(tensor) for tensor, _ in outputs.values()))
        tensors, results = [], (POINTER * len(fetched))()
        try:
            for key, (_, dtype) in wanted.items():
                tensors.append(self._tensor(inputs[key], dtype))
            with self._status() as status:
                feeds = (fed, (POINTER * len(fed))(*tensors), len(fed))
                fetches = (fetched, results, len(fetched))
                rest = (None, 0, None, status)  # no target operations, no run metadata
                self.library.TF_SessionRun(self.session, None, *feeds, *fetches, *rest)
            return {key: self._value(result) for key, result in zip(outputs, results, strict=True)}
        finally:
            for tensor in tensors:
                self._delete(tensor)
            for result in filter(None, results):
                self.library.TF_DeleteTensor(result)

    @contextlib.contextmanager
    def _status(self):  # a status shared by threads would mix up their errors
        status = self.library.TF_NewStatus()
        try:
            yield status
            if self.library.TF_GetCode(status) != 0:
                raise TensorFlowError(self.library.TF_Message(status).decode(errors="replace"))
        finally:
            self.library.TF_DeleteStatus(status)

    def _output(self, name):
        """The TF_Output that a tensor name such as "StatefulPartitionedCall:1" stands for."""
        operation_name, _, index = name.partition(":")
        operation = self.library.TF_GraphOperationByName(self.graph, operation_name.encode())
        if not operation:
            raise TensorFlowError(f"The signature names {name}, which is not in the graph.")
        return Output(operation, int(index or 0))

    def _tensor(self, value, dtype):
        shape, leaves = flatten(value)
        text = dtype == TF_STRING
        if any(isinstance(leaf, (str, bytes)) != text for leaf in leaves):
            raise TensorFlowError(f"A tensor of TF_DataType {dtype} cannot hold {leaves[:3]}.")
        dimensions = (INT64 * len(shape))(*shape)
        number = None if text else NUMBERS[dtype]
        size = TF_STRING_BYTES if text else ctypes.sizeof(number)
        tensor = self.library.TF_AllocateTensor(dtype, dimensions, len(shape), size * len(leaves))
        start = self.library.TF_TensorData(tensor)
        if text:
            for i, row in enumerate(leaves):
                row = row.encode() if isinstance(row, str) else row
                self.library.TF_StringInit(start + size * i)
                self.library.TF_StringCopy(start + size * i, row, len(row))
        elif leaves:
            (number * len(leaves)).from_address(start)[:] = leaves
        return tensor

    def _delete(self, tensor):
        # TF_DeleteTensor frees the array of strings, but not long strings on the heap.
        if self.library.TF_TensorType(tensor) == TF_STRING:
            start = self.library.TF_TensorData(tensor)
            for i in range(math.prod(self._shape(tensor))):
                self.library.TF_StringDealloc(start + TF_STRING_BYTES * i)
        self.library.TF_DeleteTensor(tensor)

    def _shape(self, tensor):
        return [self.library.TF_Dim(tensor, i) for i in range(self.library.TF_NumDims(tensor))]

    def _value(self, tensor):
        size, start = math.prod(self._shape(tensor)), self.library.TF_TensorData(tensor)
        dtype = self.library.TF_TensorType(tensor)
        if dtype == TF_STRING:
            flat = [self._string(start + TF_STRING_BYTES * i) for i in range(size)]
        else:  # an empty tensor may have no memory at all
            flat = list((NUMBERS[dtype] * size).from_address(start)) if size else []
        return unflatten(self._shape(tensor), iter(flat))

    def _string(self, address):
        data = self.library.TF_StringGetDataPointer(address)
        return ctypes.string_at(data, self.library.TF_StringGetSize(address))


def flatten(value: Any) -> tuple[list[int], list[Any]]:
    """The shape and the leaves of nested lists."""
    if not isinstance(value, list):
        return [], [value]
    parts = [flatten(item) for item in value]
    inner = parts[0][0] if parts else []
    if any(shape != inner for shape, _ in parts):
        raise TensorFlowError("The lists of a request must all have the same length.")
    return [len(value), *inner], [leaf for _, leaves in parts for leaf in leaves]


def unflatten(shape: list[int], leaves: Iterator[Any]) -> Any:
    """Puts leaves back into nested lists."""
    return [unflatten(shape[1:], leaves) for _ in range(shape[0])] if shape else next(leaves)


def bytes_from_json(value: dict[str, Any]) -> bytes | dict[str, Any]:
    """The object hook of json.loads: {"b64": ...} stands for bytes."""
    return base64.b64decode(value["b64"]) if set(value) == {"b64"} else value


def bytes_to_json(value: bytes) -> str | dict[str, str]:
    """The default of json.dumps: bytes become a string, or base64 when they are not UTF-8."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"b64": base64.b64encode(value).decode()}


def answer(server: Server, line: str) -> str:
    """The reply to one request, both JSON."""
    try:
        request = json.loads(line, object_hook=bytes_from_json)
        outputs = server.run(request["inputs"], request.get("signature_name", DEFAULT))
        return json.dumps({"outputs": outputs}, default=bytes_to_json)
    except Exception as error:  # not only a TensorFlowError: the request may be invalid
        return json.dumps({"error": str(error)})


def limit_resources(version_dir: str) -> None:
    """Limits this process: data to the machine's memory, time by the size of the weights."""
    import resource  # which other systems lack

    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    folder = os.path.join(version_dir, "variables")
    size = sum(entry.stat().st_size for entry in os.scandir(folder))
    seconds = MIN_SECONDS + size // BYTES_PER_SECOND
    for kind, most in ((resource.RLIMIT_DATA, memory), (resource.RLIMIT_CPU, seconds)):
        _, highest = resource.getrlimit(kind)
        most = most if highest == resource.RLIM_INFINITY else min(most, highest)
        resource.setrlimit(kind, (most, most))


def main(arguments: Sequence[str]) -> int:
    """Loads a version and answers the requests on stdin; returns the exit status."""
    options = {x.partition("=")[0]: x.partition("=")[2] for x in arguments if x.startswith("--")}
    site_packages, version_dir, *ops = [x for x in arguments if not x.startswith("--")]
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
    if "--limited" in options:
        limit_resources(version_dir)
    started = time.perf_counter()
    try:
        signatures = json.loads(sys.stdin.readline())
        config = UNOPTIMIZED if "--unoptimized" in options else b""
        server = Server(site_packages, version_dir, signatures, ops, config)
    except TensorFlowError as error:
        print(json.dumps({"load_error": str(error)}))
        return 1
    print(json.dumps({"load_seconds": time.perf_counter() - started}), flush=True)
    threads = int(options.get("--threads", 1))
    with ThreadPoolExecutor(threads) as pool, ThreadPoolExecutor(1) as printer:
        for line in sys.stdin:  # runs several at once, prints them in order
            reply = pool.submit(answer, server, line)
            printer.submit(lambda reply: print(reply.result(), flush=True), reply)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
