"""Imports a model of another system: finds out its kind, converts it, tries it, writes a run."""

import contextlib
import dataclasses
import os
import re
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from keras_transformer.inspection.files import describe_corruption, digest
from keras_transformer.presets import TrainConfig
from keras_transformer.presets.imported import Imported
from keras_transformer.runs.run import Run
from keras_transformer.special_ids import END, PAD, START
from keras_transformer.tokenizers import saved
from keras_transformer.tools.importers.hugging_face import (
    ADDED,
    CONFIG,
    GENERATION,
    TOKENIZER,
    WEIGHTS,
    check_instead,
    read_hugging_face,
)
from keras_transformer.tools.importers.marian import read_marian
from keras_transformer.tools.importers.opennmt_tf import DESCRIPTION, is_opennmt_tf, read_opennmt_tf
from keras_transformer.tools.importers.source_model import SourceModel, list_files
from keras_transformer.tools.importers.tensors import read_start
from keras_transformer.tools.importers.vocabularies import Rewritten, rewrite
from keras_transformer.tools.importers.weights import load_weights, resolve_sharing
from keras_transformer.utils import Path, creating

if TYPE_CHECKING:
    from keras_transformer.translation.translator import Translator

HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")
HUB_FILES = (CONFIG, GENERATION, *WEIGHTS, TOKENIZER, ADDED, "*.spm", "*vocab.json", "README.md")
INSTEAD_FILES = ("adapter_config.json", "*.index.json")  # what an error names instead
MAX_ZIP_BYTES = 8 << 30  # of what is read from a zip
SHOWN_TAGS = 5  # of those of a multilingual model


def import_model(
    path: Path, output: Path, num_heads: int | None = None, activation: str | None = None
) -> Run:
    """Imports a model of OPUS-MT (Marian) or of OpenNMT-tf as a run directory.

    Every command and function that takes a run takes the new one. All its tensors must be known,
    of the right shape and finite, and it must translate a sentence, before the directory appears.
    No code in the files is executed.

    Args:
        path: A folder of Hugging Face, with config.json, or of OPUS-MT, with an `.npz`; a zip of
            one of them; a run directory of OpenNMT-tf 2, with model_description.py; or the name of
            a model on the Hugging Face Hub, such as `"Helsinki-NLP/opus-mt-en-de"`, if the package
            huggingface_hub is installed.
        output: The directory to create.
        num_heads: Number of heads of a model of OpenNMT-tf that is not in its catalog.
        activation: Its activation, `"relu"` or `"silu"`.

    Returns:
        `Run`.

    Raises:
        ValueError: If a file is missing, corrupted or unsafe, the architecture is not supported, or
            `output` exists.

    Example:

    >>> run = keras_transformer.import_model("opus-mt-en-de", "runs/opus-en-de")
    >>> translator = keras_transformer.load(run)
    >>> translator.default_search.beam_size
    4
    """
    if os.path.exists(output) and not (os.path.isdir(output) and not os.listdir(output)):
        raise ValueError(f"{output} is not empty: choose another name.")
    with _open_folder(path) as folder:
        model = read_source(folder, num_heads, activation)
        config = resolve_sharing(model)
        source, target = rewrite(model.source, model.target)
        imported = Imported(
            source=_name(path),
            kind=model.kind,
            licence=model.licence,
            sha256=digest(model.weights),
            beam_size=model.search.beam_size,
            length_penalty=model.search.length_penalty,
            length_norm=model.search.length_norm,
            max_output_length=model.search.max_output_length,
            language_tags=model.source.tags,
        )
        translator = _make_translator(model, config, source, target)
    _check_translation(translator, path)
    run = _make_config(model, config, imported, source, target)
    with creating(output) as temporary:
        new = Run(temporary)
        new.write_config(run)
        saved.write(temporary, (translator.source_tokenizer, translator.target_tokenizer))
        new.write_model(translator.model, {"metrics": {}})
    _report(model, config, imported, (source, target))
    return Run(output)


def read_source(
    folder: Path, num_heads: int | None = None, activation: str | None = None
) -> SourceModel:
    """Reads a folder by what it contains; see `import_model`."""
    names, given = list_files(folder), (num_heads, activation)
    is_hugging_face, is_marian = CONFIG in names, any(name.endswith(".npz") for name in names)
    if not (is_hugging_face or is_marian) and is_opennmt_tf(folder):
        return read_opennmt_tf(folder, *given)
    if given != (None, None):
        raise ValueError(
            f"--num-heads and --activation are for OpenNMT-tf, which {folder} is not of."
        )
    if is_hugging_face:
        return read_hugging_face(folder)
    if is_marian:
        return read_marian(folder)
    check_instead(folder)
    raise ValueError(
        f"{folder} has neither {CONFIG}, as models of Hugging Face have, nor an .npz, as those of "
        f"OPUS-MT have, nor {DESCRIPTION}, as those of OpenNMT-tf have: give the folder of such a "
        "model."
    )


# --- folders, zips, the Hub ---


@contextlib.contextmanager
def _open_folder(path: Path) -> Iterator[str]:
    """Yields the folder of the files, which is temporary for a zip."""
    if os.path.isdir(path):
        yield os.fspath(path)
    elif os.path.isfile(path):
        with tempfile.TemporaryDirectory() as folder:
            _unzip(path, folder)
            try:
                yield folder
            except ValueError as error:
                raise ValueError(str(error).replace(folder, os.fspath(path))) from None
    elif not os.path.exists(path) and HUB_NAME.fullmatch(os.fspath(path)):
        yield _download(os.fspath(path))
    else:
        raise ValueError(f"{path} does not exist: give a folder, a zip or the name of a model.")


def _unzip(path, folder):
    """Copies the files of a model from a zip: those beside its config.json or its .npz."""
    if not read_start(path).startswith(b"PK"):
        raise ValueError(f"{path} is not a zip: give the zip of a model, or its folder.")
    try:
        with zipfile.ZipFile(path) as archive:
            files = {tuple(x.filename.replace("\\", "/").split("/")): x for x in archive.infolist()}
            for parts, entry in files.items():
                if ".." in parts or not parts[0] or ":" in parts[0]:
                    raise ValueError(
                        f"{path} has a file outside of its folder, {entry.filename[:80]!r}: do not "
                        "trust it."
                    )
            top = _find_top(path, files)
            chosen = [x for x in files if x[:-1] == top and x[-1] and not x[-1].startswith(".")]
            if sum(files[parts].file_size for parts in chosen) > MAX_ZIP_BYTES:
                raise ValueError(f"{path} is too large: give its folder instead.")
            for parts in chosen:
                with (
                    archive.open(files[parts]) as file,
                    open(os.path.join(folder, parts[-1]), "wb") as copy,
                ):
                    shutil.copyfileobj(file, copy, 1 << 20)
    except (zipfile.BadZipFile, EOFError, NotImplementedError, RuntimeError) as error:
        raise ValueError(describe_corruption(path, error)) from None


def _find_top(path, files):
    """The folder of the model in a zip; the names of the files that macOS adds begin with "._"."""
    seen = [parts for parts in files if parts[-1] and not parts[-1].startswith(".")]
    models = [parts for parts in seen if parts[-1] == CONFIG or parts[-1].endswith(".npz")]
    least = min(map(len, models or seen), default=0)
    tops = {parts[:-1] for parts in models or seen if len(parts) == least}
    if len(tops) != 1:
        raise ValueError(f"{path} must be the zip of one model: give its folder instead.")
    return tops.pop()


def _download(name):
    """Downloads a model from the Hugging Face Hub; returns its folder."""
    try:
        import huggingface_hub
    except ImportError:
        raise ValueError(
            f"{name} does not exist as a folder; to download it from the Hugging Face Hub, pip "
            "install huggingface_hub."
        ) from None
    try:
        return huggingface_hub.snapshot_download(name, allow_patterns=[*HUB_FILES, *INSTEAD_FILES])
    except Exception as error:  # of the network, of the Hub, of the disk
        reason = " ".join(str(error).split()).rstrip(".")[:200]
        raise ValueError(f"{name} cannot be downloaded from the Hub ({reason}).") from None


def _name(path):
    name = os.path.normpath(os.fspath(path))
    if not os.path.exists(path):
        return name  # on the Hub
    return os.path.basename(os.path.abspath(name)).removesuffix(".zip")


# --- the model ---


def _report(model, config, imported, sides):
    """Prints what was imported on stderr."""
    depths = config.num_layers, config.num_decoder_layers or config.num_layers
    sizes = " and ".join(f"{len(side.rows):,}" for side in sides)
    lines = [
        f"{imported.source}: {model.kind}, licence {model.licence}",
        f"{depths[0]}+{depths[1]} layers of {config.d_model}, {sizes} ids; default search: beam "
        f"{imported.beam_size}, length penalty {imported.length_penalty:g}",
    ]
    if tags := imported.language_tags:
        shown = ", ".join(tags[:SHOWN_TAGS]) + ", …" * (len(tags) > SHOWN_TAGS)
        lines.append(f"begin each source with one of {len(tags):,} language tags: {shown}")
    lines += [f"note: {note}" for note in model.notes]
    print("\n".join(lines), file=sys.stderr)


def _make_translator(
    model: SourceModel, config: Any, source: Rewritten, target: Rewritten
) -> "Translator":
    """Makes the translator, with all weights."""
    from keras_transformer.tokenizers.subword import SubwordTokenizer
    from keras_transformer.transformer import Transformer
    from keras_transformer.translation.translator import Translator

    transformer = Transformer(
        len(source.rows), len(target.rows), **dataclasses.asdict(config), dtype="float32"
    )
    load_weights(transformer, model, source, target)
    first, second = (SubwordTokenizer(side.model) for side in (source, target))
    return Translator(transformer, first, second, source_end=model.source_end)


def _check_translation(translator, path):
    """Translates some pieces, and raises if the result is impossible."""
    model = translator.model
    count = min(8, model.source_vocabulary_size - END - 1)
    text = translator.source_tokenizer.detokenize(np.arange(END + 1, END + 1 + count))
    source, _ = translator.read_source([text])
    from keras_transformer.decoding.sampling import greedy_search

    state = model.initial_state(source)
    tokens, lengths, log_prob = greedy_search(model.make_step(), state, 1, 8)
    row = np.array(tokens)[0, : int(np.array(lengths)[0])]
    if not np.isfinite(np.array(log_prob)).all() or np.isin(row, [PAD, START]).any():
        raise ValueError(f"{path} does not translate: its weights give no probabilities.")


def _make_config(model, config, imported, source, target):
    """The configuration of the run."""
    sizes = len(source.rows), len(target.rows)
    joint = config.share_embeddings == "all"
    return TrainConfig(
        vocabulary_size=sizes[1],
        source_vocabulary_size=None if joint else sizes[0],
        target_vocabulary_size=None if joint else sizes[1],
        model_type=saved.model_type(source.model),
        model=config,
        source_end=model.source_end,
        tokens_per_batch=max(TrainConfig.tokens_per_batch, config.max_length),
        imported=imported,
    )
