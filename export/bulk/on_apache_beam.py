"""Translates many files with an export, on Apache Beam.

    python on_apache_beam.py --model export/models/ende/1 --input 'in/*.txt' --output out
    python on_apache_beam.py … --direct_num_workers=4          # Beam's own options
    python on_apache_beam.py … --runner=DataflowRunner --project=… --temp_location=gs://…

Without --runner, runs on this machine, with a process for each core. Workers need TensorFlow and
tensorflow-text, not keras_transformer.
"""

import os
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import apache_beam as beam
import formats
import shards
from apache_beam.internal.cloudpickle import cloudpickle
from apache_beam.ml.inference.base import ModelHandler, RunInference
from apache_beam.options.pipeline_options import PipelineOptions

LOCAL = ["--runner=FnApiRunner", "--direct_running_mode=multi_processing"]


class Handler(ModelHandler[shards.Shard, tuple, shards.Model]):
    """Loads the export once per process; an example is a shard, which has batches of its own."""

    def __init__(self, options: shards.Options) -> None:
        super().__init__(max_batch_size=1)
        self._options = options

    def load_model(self) -> shards.Model:
        return shards.Model(self._options)

    def run_inference(
        self, batch: Sequence[shards.Shard], model: shards.Model, inference_args: Any = None
    ) -> Iterable[tuple]:
        return [shards.translate_shard(shard, model, self._options) for shard in batch]


def read(file, options):
    """Yields shards, and tagged with "end" (path, number of shards)."""
    for shard in shards.read_shards(file, options):
        path, number, rows = shard
        yield shard if rows is not None else beam.pvalue.TaggedOutput("end", (path, number))


def finish(item, options):
    path, groups = item
    for count in groups["end"]:
        shards.finish_file(path, count, options)


def check_options(words):
    """Exits if there are options that Beam does not have: it would only log a warning."""

    def check(parser):
        if unknown := parser.parse_known_args(words)[1]:
            sys.exit(f"Unknown option {unknown[0]}: it is neither one of --help nor one of Beam.")

    PipelineOptions(words).get_all_options(add_extra_args_fn=check)


def main() -> None:
    options, rest = shards.parse_arguments(__doc__.splitlines()[0])
    check_options(rest)
    paths = shards.find_inputs_or_exit(options)
    if not any(word.startswith("--runner") for word in rest):
        rest = [*LOCAL, f"--direct_num_workers={os.cpu_count()}", *rest]
    for module in (shards, formats):  # workers do not have them
        cloudpickle.register_pickle_by_value(module)
    with beam.Pipeline(options=PipelineOptions(rest)) as pipeline:
        found = (
            pipeline
            | "Files" >> beam.Create(paths)
            | "Spread files" >> beam.Reshuffle()
            | "Read" >> beam.FlatMap(read, options).with_outputs("end", main="shards")
        )
        done = (
            found.shards
            | "Spread shards" >> beam.Reshuffle()
            | "Translate" >> RunInference(Handler(options))
        )
        # A file is finished after all its shards, which the group waits for.
        groups = {"done": done, "end": found.end} | beam.CoGroupByKey()
        groups | "Finish" >> beam.Map(finish, options)
    shards.exit_with_report(paths, options)


if __name__ == "__main__":
    main()
