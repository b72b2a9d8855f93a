"""The commands `export` and `check`: from a run to what a server loads."""

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, TextIO

from keras_transformer.presets import ExportConfig

if TYPE_CHECKING:
    from keras_transformer.serving.acceptance.trial import Finding

Ops = Annotated[
    tuple[str, ...],
    "names of TensorFlow ops that the graph of a SavedModel may hold besides those of this "
    "package's exports, such as those of your own tokenizer",
]


def export(
    path: Annotated[str, "run directory"],
    base: Annotated[
        str, "directory of all versions of the model; for ctranslate2, the one to make"
    ],
    /,
    format: Annotated[
        str, "saved_model, or ctranslate2 for that engine, to which no other option applies"
    ] = "saved_model",
    version: Annotated[int | None, "free positive integer; none: one more than the highest"] = None,
    examples: Annotated[
        str | None,
        "sentences for warm-up, the card's examples and the comparison: .tsv with both columns, "
        "text or .gz; if unset, some that the run was validated by",
    ] = None,
    examples_target: Annotated[str | None, "their translations, line by line"] = None,
    bleu_tokenize: Annotated[
        str | None,
        "sacreBLEU's tokenizer for the comparison with full precision; if unset, the run's",
    ] = None,
    *,
    config: ExportConfig,
) -> None:
    """Write a run as base/<version>/, a SavedModel that TF Serving takes as it is.

    It is tried first, as a server would run it, and published only if all is well. A model card
    (MODEL.md, model.json) and warm-up requests lie beside the weights.
    """
    from keras_transformer.runs.models import load

    if format == "ctranslate2":
        from keras_transformer.serving.ctranslate2 import export_ctranslate2

        print(export_ctranslate2(load(path), base))
    elif format == "saved_model":
        from keras_transformer.serving.saved_model import export as publish

        pairs = _read_pairs(path, examples, examples_target)
        translator = load(path, "float32")
        if not pairs:
            print(
                f"{path} holds no examples, as older runs do not: the card shows some letters; "
                "name sentences by --examples.",
                file=sys.stderr,
            )
        print(publish(translator, base, version, config, pairs, print_report, bleu_tokenize))
    else:
        raise ValueError(f"format must be saved_model or ctranslate2, received {format!r}.")


def _read_pairs(path, examples, target):
    """The pairs that are named, or those in the run; an older one has none."""
    from keras_transformer.data.text_files import read_pairs
    from keras_transformer.runs.run import Run

    if target and not examples:
        raise ValueError("--examples is missing: name the sentences that --examples-target is of.")
    if examples:
        return [tuple(pair[:2]) for pair in read_pairs(examples, target, "--examples-target")]
    return Run(path).read_examples()


def check(
    path: Annotated[str, "version directory, or the one above, of which the highest is taken"],
    /,
    allow_ops: Ops = (),
) -> None:
    """Try an exported version as a server would run it; exit with status 1 if it is not fit."""
    from keras_transformer.serving.acceptance.trial import check as try_out
    from keras_transformer.serving.versions import version_dir

    findings = try_out(version_dir(path), allow_ops=allow_ops)
    print_report(findings, sys.stdout)
    if any(finding.problems for finding in findings):
        sys.exit(1)


def print_report(findings: "Sequence[Finding]", file: TextIO | None = None) -> None:
    """Prints `Finding`s as a table, problems below it."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(file=file or sys.stderr, soft_wrap=True)
    table = Table("check", "result", "seen", box=None)
    for finding in findings:
        table.add_row(finding.check, _result(finding), finding.detail)
    console.print(table)
    for finding in findings:
        for problem in finding.problems:
            console.print(Text(problem))


def _result(finding):
    from rich.text import Text

    if finding.left_out:
        return Text("left out", "yellow")
    failed = len(finding.problems)
    return Text(f"{failed} failed", "red") if failed else Text("ok", "green")
