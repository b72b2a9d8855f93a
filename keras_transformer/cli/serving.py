"""The commands `export` and `check`: from a run to a SavedModel for serving."""

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, TextIO

from keras_transformer.presets import GREEDY, ExportConfig

if TYPE_CHECKING:
    from keras_transformer.serving.acceptance.trial import Finding

Ops = Annotated[
    tuple[str, ...],
    "additional TensorFlow ops to allow in the graph of a SavedModel, such as those of your own "
    "tokenizer",
]


def export(
    path: Annotated[str, "run directory"],
    base: Annotated[str, "directory of the model's versions; for ctranslate2, directory to create"],
    /,
    format: Annotated[
        str, "saved_model, or ctranslate2, which has no further options"
    ] = "saved_model",
    version: Annotated[int | None, "version number to create; none: the highest plus one"] = None,
    examples: Annotated[
        str | None,
        "sentences for warm-up requests, model card and comparison: .txt, .gz or two-column .tsv; "
        "if unset, some of the validation set",
    ] = None,
    examples_target: Annotated[str | None, "their translations, line by line"] = None,
    bleu_tokenize: Annotated[
        str | None,
        "sacreBLEU tokenizer for the comparison with full precision; if unset, the run's",
    ] = None,
    *,
    options: Annotated[dict[str, Any], ExportConfig],
) -> None:
    """Export a run as a SavedModel, base/<version>/, that TensorFlow Serving loads.

    The export is tested first, as a server would run it, and published only if all checks pass. It
    includes a model card (MODEL.md, model.json) and warm-up requests. An imported model has the
    beam size and the length penalty of its own configuration by default.
    """
    from keras_transformer.runs.models import load

    config = _configure(path, options)
    if format == "ctranslate2":
        from keras_transformer.tools.ctranslate2 import export_ctranslate2

        others = version, examples, examples_target, bleu_tokenize
        if options or any(value is not None for value in others):
            raise ValueError("--format ctranslate2 has no further options: leave out the others.")
        print(export_ctranslate2(load(path), base))
    elif format == "saved_model":
        from keras_transformer.serving.saved_model import export as publish

        pairs = _read_examples(path, examples, examples_target)
        translator = load(path, "float32")
        if not pairs:
            print(
                f"{path} has no examples, as it was imported or made by an older version: the "
                "model card shows placeholders; give sentences by --examples.",
                file=sys.stderr,
            )
        print(publish(translator, base, version, config, pairs, print_report, bleu_tokenize))
    else:
        raise ValueError(f"format must be saved_model or ctranslate2, received {format!r}.")


def _configure(path, options):
    """The `ExportConfig`; an imported model has the beam of its own configuration by default."""
    from keras_transformer.runs.run import CONFIG, Run

    run = Run(path)
    search = run.read_config().search if run.has(CONFIG) else GREEDY
    return ExportConfig.for_search(search, **options)


def _read_examples(path, examples, target):
    """Reads the given pairs, or those in the run; an older run has none."""
    from keras_transformer.data.text_files import read_pairs
    from keras_transformer.runs.run import Run

    if target and not examples:
        raise ValueError("--examples is missing: give the sources of --examples-target.")
    if examples:
        return [tuple(pair[:2]) for pair in read_pairs(examples, target, "--examples-target")]
    return Run(path).read_examples()


def check(
    path: Annotated[str, "version directory, or the one above, for its highest version"],
    /,
    allow_ops: Ops = (),
) -> None:
    """Test an exported version as a server would run it; exit with status 1 if a check fails."""
    from keras_transformer.serving.acceptance.trial import check as try_out
    from keras_transformer.serving.versions import version_dir

    directory = version_dir(path)
    findings = try_out(directory, allow_ops=allow_ops)
    print(directory)
    print_report(findings, sys.stdout)
    if any(finding.problems for finding in findings):
        sys.exit(1)


def print_report(findings: "Sequence[Finding]", file: TextIO | None = None) -> None:
    """Prints `Finding`s as a table, problems below it."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(file=file or sys.stderr, soft_wrap=True)
    table = Table("check", "result", "details", box=None)
    for finding in findings:
        table.add_row(finding.check, _format_result(finding), finding.detail)
    console.print(table)
    for finding in findings:
        for problem in finding.problems:
            console.print(Text(problem))


def _format_result(finding):
    from rich.text import Text

    if finding.skipped:
        return Text("skipped", "yellow")
    failed = len(finding.problems)
    return Text(f"{failed} failed", "red") if failed else Text("ok", "green")
