"""Translates many files with an export, on Apache Spark.

    python on_spark.py --model export/models/ende/1 --input 'in/*.txt' --output out
    spark-submit --master yarn --num-executors 100 on_spark.py --model … --input … --output …

Without spark-submit, runs on this machine, with a process for each core. Workers need TensorFlow,
tensorflow-text, pandas and pyarrow, not keras_transformer.
"""

import functools
import os
import pickle
import sys

import formats
import pandas
import shards
from pyspark.sql import SparkSession

TASKS_PER_CORE = 4  # so that cores finish at about the same time
_model = None  # of this process


def read(frames, options):
    """From paths to shards; a row without content has the number of shards of a file."""
    for frame in frames:
        for file in frame["path"]:
            for path, number, rows in shards.read_shards(file, options):
                content = None if rows is None else pickle.dumps(rows)
                yield pandas.DataFrame({"path": [path], "number": [number], "rows": [content]})


def translate(frames, options):
    """Translates shards; passes the other rows on."""
    global _model
    for frame in frames:
        for path, number, content in zip(
            frame["path"], frame["number"], frame["rows"], strict=True
        ):
            if content is not None:
                if _model is None:
                    _model = shards.Model(options)
                shards.translate_shard((path, number, pickle.loads(content)), _model, options)
        yield frame[frame["rows"].isnull()][["path", "number"]]


def finish(frames, options):
    for frame in frames:
        for path, count in zip(frame["path"], frame["number"], strict=True):
            shards.finish_file(path, count, options)
        yield frame


def main() -> None:
    options, rest = shards.parse_arguments(__doc__.splitlines()[0])
    if rest:
        sys.exit(f"Unknown option {rest[0]}: see --help.")
    paths = shards.find_inputs_or_exit(options)
    if "PYSPARK_GATEWAY_PORT" not in os.environ:  # without spark-submit: workers of this machine
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    spark = SparkSession.builder.appName("keras-transformer").getOrCreate()
    for module in (shards, formats):  # workers do not have them
        spark.sparkContext.addPyFile(module.__file__)
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "1")  # of many rows each
    tasks = TASKS_PER_CORE * spark.sparkContext.defaultParallelism
    files = spark.createDataFrame([(path,) for path in paths], "path string")
    found = files.repartition(len(paths)).mapInPandas(
        functools.partial(read, options=options), "path string, number long, rows binary"
    )
    ends = found.repartition(tasks).mapInPandas(
        functools.partial(translate, options=options), "path string, number long"
    )
    rows = ends.collect()  # all shards are written now
    if rows:
        finished = spark.createDataFrame(rows).repartition(min(tasks, len(rows)))
        finished.mapInPandas(
            functools.partial(finish, options=options), "path string, number long"
        ).collect()
    spark.stop()
    shards.exit_with_report(paths, options)


if __name__ == "__main__":
    main()
