"""Runs a SavedModel's serving_default as TF Serving does: TensorFlow's C++ loader, no Python op.

usage: python -S -E c_api.py SITE_PACKAGES VERSION_DIR [OPS_SO ...] [--xla] < requests > replies

TF Serving is a C++ program that reads the SavedModel with the loader in libtensorflow_cc, with
XLA switched off, and with tensorflow-text's kernels linked in. This program does the same through
TensorFlow's C API and ctypes. It never runs `import tensorflow`, and under `python -S -E` it could
not, so nothing of Python can help the graph. OPS_SO are shared libraries with custom kernels;
SITE_PACKAGES is only where TensorFlow's libraries lie.

Requests and replies are JSON, one a line, in the column format of TF Serving's REST API:

    {"inputs": ["a cat", {"b64": "//4="}]}  ->  {"outputs": {"text": [...], "log_prob": [...]}}
    {"inputs": "a cat"}                     ->  {"error": "..."}

A row is a string, or {"b64": ...} for arbitrary bytes; the nesting of lists gives the tensor's
rank. Output strings that are not UTF-8 come back as {"b64": ...}. A model that cannot be loaded
gives the single line {"load_error": "..."}. What TensorFlow logs goes to stderr, as does the time
that loading took.
"""

import base64
import ctypes
import json
import math
import os
import sys
import time

TF_FLOAT, TF_STRING = 1, 7  # TF_DataType
TF_STRING_BYTES = 24  # sizeof(TF_TString), the same on every 64-bit platform
SIGNATURE = "serving_default"
POINTER, INT, SIZE, TEXT = ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t, ctypes.c_char_p
INT64 = ctypes.c_int64


class Buffer(ctypes.Structure):
    """TF_Buffer."""

    _fields_ = [("data", POINTER), ("length", SIZE), ("deallocator", POINTER)]


class Output(ctypes.Structure):
    """TF_Output: one output of one operation."""

    _fields_ = [("operation", POINTER), ("index", INT)]


BUFFER = ctypes.POINTER(Buffer)
FEEDS_OR_FETCHES = [ctypes.POINTER(Output), ctypes.POINTER(POINTER), INT]

# What is used of tensorflow/c/{c_api,tf_tensor,tf_tstring}.h: (result, arguments).
FUNCTIONS = {
    "TF_NewStatus": (POINTER, []),
    "TF_GetCode": (INT, [POINTER]),
    "TF_Message": (TEXT, [POINTER]),
    "TF_LoadLibrary": (POINTER, [TEXT, POINTER]),
    "TF_NewGraph": (POINTER, []),
    "TF_NewBuffer": (BUFFER, []),
    "TF_NewSessionOptions": (POINTER, []),
    "TF_LoadSessionFromSavedModel": (
        POINTER,
        [POINTER, POINTER, TEXT, ctypes.POINTER(TEXT), INT, POINTER, BUFFER, POINTER],
    ),
    "TF_GraphOperationByName": (POINTER, [POINTER, TEXT]),
    "TF_SessionRun": (
        None,
        [POINTER, POINTER, *FEEDS_OR_FETCHES, *FEEDS_OR_FETCHES, POINTER, INT, POINTER, POINTER],
    ),
    "TF_AllocateTensor": (POINTER, [INT, ctypes.POINTER(INT64), INT, SIZE]),
    "TF_DeleteTensor": (None, [POINTER]),
    "TF_TensorData": (POINTER, [POINTER]),
    "TF_TensorType": (INT, [POINTER]),
    "TF_NumDims": (INT, [POINTER]),
    "TF_Dim": (INT64, [POINTER, INT]),
    "TF_StringInit": (None, [POINTER]),
    "TF_StringCopy": (None, [POINTER, TEXT, SIZE]),
    "TF_StringDealloc": (None, [POINTER]),
    "TF_StringGetDataPointer": (POINTER, [POINTER]),
    "TF_StringGetSize": (SIZE, [POINTER]),
}


class TensorFlowError(Exception):
    """A status that is not OK."""


class Server:
    """One version directory, loaded.

    Args:
        site_packages: the directory that holds TensorFlow's wheel.
        version_dir: the directory that holds saved_model.pb.
        op_libraries: paths of shared libraries to load first.
        xla: whether XLA may compile; a server says no unless a flag is set.
    """

    def __init__(self, site_packages, version_dir, op_libraries=(), xla=False):
        directory = os.path.join(site_packages, "tensorflow")
        for name in ("libtensorflow_framework.so.2", "libtensorflow_cc.so.2"):
            # Global, for the op libraries look TensorFlow's symbols up there.
            self.library = ctypes.CDLL(os.path.join(directory, name), mode=ctypes.RTLD_GLOBAL)
        for name, (result, arguments) in FUNCTIONS.items():
            function = getattr(self.library, name)
            function.restype, function.argtypes = result, arguments
        if not xla:
            # tensorflow::DisableXlaCompilation(), as in TF Serving's main.cc.
            self.library._ZN10tensorflow21DisableXlaCompilationEv()
        self.status = self.library.TF_NewStatus()
        for path in op_libraries:
            self.library.TF_LoadLibrary(path.encode(), self.status)
            self._check()

        self.graph = self.library.TF_NewGraph()
        meta_graph = self.library.TF_NewBuffer()
        options, tags = self.library.TF_NewSessionOptions(), (TEXT * 1)(b"serve")
        where = (version_dir.encode(), tags, len(tags), self.graph, meta_graph, self.status)
        self.session = self.library.TF_LoadSessionFromSavedModel(options, None, *where)
        self._check()
        content = ctypes.string_at(meta_graph.contents.data, meta_graph.contents.length)
        self.inputs, self.outputs = read_signature(content, SIGNATURE)

    def run(self, inputs):
        """Runs one batch.

        Args:
            inputs: the value of the signature's one input: str, bytes, or nested lists of them.

        Returns:
            A dictionary from output names to values, nested as the tensors are.
        """
        (input_name,) = self.inputs.values()
        fed = (Output * 1)(self._output(input_name))
        fetched = (Output * len(self.outputs))(*map(self._output, self.outputs.values()))
        tensor = self._string_tensor(inputs)
        results = (POINTER * len(fetched))()
        feeds, fetches = (fed, (POINTER * 1)(tensor), 1), (fetched, results, len(fetched))
        rest = (None, 0, None, self.status)  # no target operations, no run metadata
        try:
            self.library.TF_SessionRun(self.session, None, *feeds, *fetches, *rest)
            self._check()
            values = [self._value(result) for result in results]
            return dict(zip(self.outputs, values, strict=True))
        finally:
            self._delete_string_tensor(tensor)
            for result in results:
                if result:
                    self.library.TF_DeleteTensor(result)

    def _check(self):
        if self.library.TF_GetCode(self.status) != 0:
            raise TensorFlowError(self.library.TF_Message(self.status).decode(errors="replace"))

    def _output(self, name):
        """The TF_Output that a tensor name such as "StatefulPartitionedCall:1" stands for."""
        operation_name, _, index = name.partition(":")
        operation = self.library.TF_GraphOperationByName(self.graph, operation_name.encode())
        if not operation:
            raise TensorFlowError(f"The signature names {name}, which is not in the graph.")
        return Output(operation, int(index or 0))

    def _string_tensor(self, value):
        shape, rows = flatten(value)
        dimensions = (INT64 * len(shape))(*shape)
        size = TF_STRING_BYTES * len(rows)
        tensor = self.library.TF_AllocateTensor(TF_STRING, dimensions, len(shape), size)
        start = self.library.TF_TensorData(tensor)
        for i, row in enumerate(rows):
            row = row.encode() if isinstance(row, str) else row
            self.library.TF_StringInit(start + TF_STRING_BYTES * i)
            self.library.TF_StringCopy(start + TF_STRING_BYTES * i, row, len(row))
        return tensor

    def _delete_string_tensor(self, tensor):
        # TF_DeleteTensor frees the array of strings, not what long strings keep on the heap.
        start = self.library.TF_TensorData(tensor)
        for i in range(math.prod(self._shape(tensor))):
            self.library.TF_StringDealloc(start + TF_STRING_BYTES * i)
        self.library.TF_DeleteTensor(tensor)

    def _shape(self, tensor):
        rank = self.library.TF_NumDims(tensor)
        return [self.library.TF_Dim(tensor, axis) for axis in range(rank)]

    def _value(self, tensor):
        """The content of a string or float tensor as nested lists."""
        size, start = math.prod(self._shape(tensor)), self.library.TF_TensorData(tensor)
        dtype = self.library.TF_TensorType(tensor)
        if dtype == TF_STRING:
            flat = [self._string(start + TF_STRING_BYTES * i) for i in range(size)]
        elif dtype == TF_FLOAT:
            # An empty tensor may have no memory at all.
            flat = list((ctypes.c_float * size).from_address(start)) if size else []
        else:
            raise TensorFlowError(f"Outputs are strings or floats, got TF_DataType {dtype}.")
        return unflatten(self._shape(tensor), iter(flat))

    def _string(self, address):
        data = self.library.TF_StringGetDataPointer(address)
        return ctypes.string_at(data, self.library.TF_StringGetSize(address))


def flatten(value):
    """Splits nested lists into their shape and their leaves."""
    if not isinstance(value, list):
        return [], [value]
    parts = [flatten(item) for item in value]
    inner = parts[0][0] if parts else []
    if any(shape != inner for shape, _ in parts):
        raise TensorFlowError("The lists of a request must all have the same length.")
    return [len(value), *inner], [leaf for _, leaves in parts for leaf in leaves]


def unflatten(shape, leaves):
    """Puts leaves back into nested lists."""
    if not shape:
        return next(leaves)
    return [unflatten(shape[1:], leaves) for _ in range(shape[0])]


def fields(message):
    """Yields (field number, value) of a serialized protobuf: there is no protobuf library here."""
    position = 0

    def varint():
        nonlocal position
        value = shift = 0
        while True:
            byte = message[position]
            position += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while position < len(message):
        key = varint()
        number, wire_type = key >> 3, key & 7
        if wire_type == 0:
            yield number, varint()
            continue
        length = {1: 8, 5: 4}[wire_type] if wire_type != 2 else varint()
        yield number, message[position : position + length]
        position += length


def read_signature(meta_graph, name):
    """Reads a SignatureDef: ({input: tensor name}, {output: tensor name})."""
    for number, entry in fields(meta_graph):
        # MetaGraphDef.signature_def = 5, a map: entries of key = 1, value = 2.
        if number == 5 and (entry := dict(fields(entry)))[1].decode() == name:
            found = {1: {}, 2: {}}  # SignatureDef.inputs = 1, outputs = 2
            for kind, tensor in fields(entry[2]):
                if kind in found:
                    tensor = dict(fields(tensor))
                    # TensorInfo.name = 1
                    found[kind][tensor[1].decode()] = dict(fields(tensor[2]))[1].decode()
            return found[1], found[2]
    raise TensorFlowError(f"There is no signature named {name}.")


def bytes_from_json(value):
    """The object hook of json.loads: {"b64": ...} stands for bytes."""
    return base64.b64decode(value["b64"]) if set(value) == {"b64"} else value


def bytes_to_json(value):
    """The default of json.dumps: bytes become a string, or base64 when they are not UTF-8."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"b64": base64.b64encode(value).decode()}


def main(arguments):
    xla = "--xla" in arguments
    site_packages, version_dir, *op_libraries = [x for x in arguments if x != "--xla"]
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
    started = time.perf_counter()
    try:
        server = Server(site_packages, version_dir, op_libraries, xla)
    except TensorFlowError as error:
        print(json.dumps({"load_error": str(error)}))
        return 1
    print(f"loaded in {time.perf_counter() - started:.2f} s", file=sys.stderr)
    for line in sys.stdin:
        try:
            request = json.loads(line, object_hook=bytes_from_json)
            reply = {"outputs": server.run(request["inputs"])}
        except TensorFlowError as error:
            reply = {"error": str(error)}
        print(json.dumps(reply, default=bytes_to_json), flush=True)
    assert "tensorflow" not in sys.modules
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
