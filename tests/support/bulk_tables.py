"""Parquet files that are translated or refused: run where pyarrow is, without this package.

Usage: python bulk_tables.py EXPORT/bulk DIRECTORY. Prints {case: [reason or "", columns, rows]}.
"""

import contextlib
import io
import json
import os
import sys

import pyarrow
import pyarrow.parquet

sys.path.append(sys.argv[1])
import shards  # noqa: E402

TEXTS = ["a", "", None, "b"]
CASES = {
    "string": {"text": TEXTS},
    "large_string": {"text": pyarrow.array(TEXTS, pyarrow.large_string())},
    "dictionary": {"text": pyarrow.array(TEXTS).dictionary_encode()},
    "none": {"text": pyarrow.array([], pyarrow.string())},
    "lists": {"text": [["a"]]},
    "numbers": {"text": [1]},
    "bytes": {"text": [b"a"]},
    "nested": {"x": [{"text": "a"}]},
    "missing": {"body": ["a"]},
    "translated": {"text": ["a"], "translation": ["old"]},
    "scored": {"text": ["a"], "log_prob": [0.5]},
}


def capitals(*texts):
    return [(text.upper(), -1.0) for text in texts[0]]


def translate(name, table):
    path, output = f"{sys.argv[2]}/in/{name}", f"{sys.argv[2]}/out-{name}"
    pyarrow.parquet.write_table(pyarrow.table(table), path)
    options = shards.Options("none", (path,), output, format="parquet", shard_rows=3)
    (path,) = shards.find_inputs(options)
    for shard in shards.read_shards(path, options):
        if shard[2] is None:
            shards.finish_file(path, shard[1], options)
        else:
            shards.translate_shard(shard, capitals, options)
    with contextlib.redirect_stderr(io.StringIO()) as report, contextlib.suppress(SystemExit):
        shards.exit_with_report([path], options)
    if not os.path.exists(f"{output}/{name}"):
        return [report.getvalue(), None]
    read = pyarrow.parquet.read_table(f"{output}/{name}")
    # The next run reads the same table, and finds it finished.
    again = [rows for *_, rows in shards.read_shards(path, options)]
    return ["" if again == [] else "not finished", [read.schema.names, read.to_pylist()]]


os.mkdir(f"{sys.argv[2]}/in")
print(json.dumps({name: translate(name, table) for name, table in CASES.items()}))
