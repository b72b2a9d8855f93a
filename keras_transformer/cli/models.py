"""The commands that serve and show a model: `export`, `check`, `attention`, `plot`, `explore`."""

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, TextIO

from keras_transformer.cli.text import Language, Ops, Precision, open_run, set_threads
from keras_transformer.presets import ExportConfig

if TYPE_CHECKING:
    from keras_transformer.serving.trial import Finding


def export(
    path: Annotated[tuple[str, ...], "run directory; several are exported as an ensemble"],
    base: Annotated[str, "directory of the model's versions; for ctranslate2, directory to create"],
    /,
    format: Annotated[
        str, "saved_model, or ctranslate2, which has no further options"
    ] = "saved_model",
    version: Annotated[int | None, "version number to create; none: the highest plus one"] = None,
    examples: Annotated[
        str | None,
        "sentences for warm-up requests and model card: .txt, .gz or two-column .tsv; if unset, "
        "some of the validation set",
    ] = None,
    examples_target: Annotated[str | None, "their translations, line by line"] = None,
    *,
    options: Annotated[dict[str, Any], ExportConfig],
) -> None:
    """Export a run or an ensemble as a SavedModel, base/<version>/, that TensorFlow Serving loads.

    The export is tested first, as a server would run it, and published only if all checks pass. It
    includes a model card (model.json) and warm-up requests. An imported model has the beam size
    and the length penalty of its own configuration by default.
    """
    from keras_transformer.runs.opening import load
    from keras_transformer.runs.run import CONFIG, Run

    if Run(base).has_model or Run(base).has(CONFIG):
        raise ValueError(f"{base} is a run: give the directory of the model's versions last.")
    run = Run(path[0])
    config = ExportConfig.for_search(run.read_search(), **options)
    if format == "ctranslate2":
        from keras_transformer.tools.ctranslate2 import export_ctranslate2

        others = version, examples, examples_target
        if options or any(value is not None for value in others):
            raise ValueError("--format ctranslate2 has no further options: leave out the others.")
        print(export_ctranslate2(load(path), base))
    elif format == "saved_model":
        from keras_transformer.serving.saved_model import export as publish

        pairs = _read_examples(run, examples, examples_target)
        print(publish(load(path, "float32"), base, version, config, pairs, print_report))
    else:
        raise ValueError(f"format must be saved_model or ctranslate2, received {format!r}.")


def _read_examples(run, examples, target):
    """Reads the given pairs, or those in the run; an older run has none."""
    from keras_transformer.data.text_files import read_pairs

    if target and not examples:
        raise ValueError("--examples is missing: give the sources of --examples-target.")
    if examples:
        return [tuple(pair[:2]) for pair in read_pairs(examples, target, "--examples-target")]
    return run.read_examples()


def check(
    path: Annotated[str, "version directory, or the one above, for its highest version"],
    /,
    allow_ops: Ops = (),
) -> None:
    """Test an exported version as a server would run it; exit with status 1 if a check fails."""
    from keras_transformer.serving.trial import check as try_out
    from keras_transformer.serving.versions import version_dir

    directory = version_dir(path)
    findings = try_out(directory, allow_ops=allow_ops)
    print(directory)
    print_report(findings, sys.stdout)
    if any(finding.problems for finding in findings):
        sys.exit(1)


def print_report(findings: "Sequence[Finding]", file: TextIO | None = None) -> None:
    """Prints `Finding`s as a table, problems below it."""
    rows = [("check", "result", "details")]
    for finding in findings:
        failed = len(finding.problems)
        result = "skipped" if finding.skipped else f"{failed} failed" if failed else "ok"
        rows.append((finding.check, result, finding.detail))
    width = max(len(check) for check, _, _ in rows)
    lines = [f"{check:{width}}  {result:9}  {detail}".rstrip() for check, result, detail in rows]
    lines += [problem for finding in findings for problem in finding.problems]
    print(*lines, sep="\n", file=file or sys.stderr)


def attention(
    path: Annotated[str, "run directory"],
    text: Annotated[str, "sentence to translate"],
    /,
    output: Annotated[str, "picture to write: .png, .pdf or .svg"] = "attention.png",
    target: Annotated[str | None, "translation to show instead of the model's"] = None,
    kind: Annotated[
        str, "cross-attention (cross), or self-attention of the encoder or the decoder"
    ] = "cross",
    layers: Annotated[tuple[int, ...], "layers to draw, from 1; default: all"] = (),
    heads: Annotated[tuple[int, ...], "heads to draw, from 1; default: all"] = (),
    source_language: Language = None,
    target_language: Language = None,
    precision: Precision = None,
) -> None:
    """Draw the attention weights of a translation: rows are queries, columns are keys."""
    from keras_transformer.tools.plots import check_output, save_attention_plot

    check_output(output)  # before TensorFlow is imported
    opened = open_run(path, precision, source_language, target_language)
    set_threads(opened)
    print(save_attention_plot(opened, text, output, target, kind, layers, heads))


def plot(
    run: Annotated[tuple[str, ...], "one or more run directories; the legend has their names"],
    /,
    output: Annotated[str, "picture to write: .png, .pdf or .svg"] = "curves.png",
) -> None:
    """Draw learning rate, losses, BLEU and chrF of one or more trainings."""
    from keras_transformer.tools.curves import save_runs_plot

    print(save_runs_plot(run, output))


def explore(
    path: Annotated[str, "run directory"],
    /,
    port: Annotated[int, "port to listen on; 0: any free port"] = 0,
    no_browser: Annotated[bool, "print the address only, without opening a browser"] = False,
    source_language: Language = None,
    target_language: Language = None,
) -> None:
    """Open a local web page that shows how a model translates a sentence.

    The page shows the translation, the attention weights of every layer and head, and other
    translations by beam search and random sampling. Select a target token to see its alternatives;
    select one of these, and the translation continues from there. The command prints the page's
    address, which contains a secret token and is reachable from this machine only. Press Ctrl-C to
    stop.
    """
    from keras_transformer.tools.explorer.server import ExploredRun, ExplorerServer, listen

    with listen(port) as listening:
        opened = open_run(path, None, source_language, target_language)
        set_threads(opened)
        explorer = ExplorerServer(ExploredRun(opened), listening)
        print(explorer.address, flush=True)
        print("Press Ctrl-C to stop the explorer.", file=sys.stderr)
        explorer.run(browser=not no_browser)
