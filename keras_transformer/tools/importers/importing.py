"""Imports a model of another system: finds out its kind, converts it, tries it, writes a run."""

import contextlib
import dataclasses
import os
import re
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from keras_transformer.presets import TrainConfig
from keras_transformer.runs.run import Run
from keras_transformer.tokenizers import saved
from keras_transformer.tools.importers.hugging_face import (
    ADDED,
    CONFIG,
    FAST,
    GENERATION,
    TOKENIZER,
    WEIGHTS,
    read_marian_folder,
)
from keras_transformer.tools.importers.m2m100 import PIECES, SPECIAL_TOKENS, read_m2m100
from keras_transformer.tools.importers.marian import read_marian
from keras_transformer.tools.importers.opennmt_tf import DESCRIPTION, read_opennmt_tf
from keras_transformer.tools.importers.source_model import SourceModel, list_files
from keras_transformer.tools.importers.vocabularies import Rewritten, rewrite
from keras_transformer.tools.importers.weights import load_weights, resolve_sharing
from keras_transformer.utils import (
    Path,
    check_is_free,
    creating,
    describe_corruption,
    digest,
    read_json,
)

if TYPE_CHECKING:
    from keras_transformer.translation.translator import Translator

READERS = {"marian": read_marian_folder, "m2m_100": read_m2m100}  # by the type of the model
HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")
HUB_FILES = (
    *(CONFIG, GENERATION, *WEIGHTS, "*.index.json", "model-*.safetensors", "pytorch_model-*.bin"),
    *(TOKENIZER, ADDED, SPECIAL_TOKENS, FAST, PIECES, "*.spm", "*vocab.json", "README.md"),
)
MAX_ZIP_BYTES = 8 << 30  # of what is read from a zip


def import_model(
    path: Path,
    output: Path,
    num_heads: int | None = None,
    activation: str | None = None,
    source_language: str | None = None,
    target_language: str | None = None,
) -> Run:
    """Imports a model of OPUS-MT (Marian), M2M100, NLLB or OpenNMT-tf as a run directory.

    Every command and function that takes a run takes the new one. All its tensors must be known,
    of the right shape and finite. No code in the files is executed.

    Args:
        path: A folder of Hugging Face, with config.json, or of OPUS-MT, with an `.npz`; a zip of
            one of them; a run directory of OpenNMT-tf 2, with model_description.py; or the name of
            a model on the Hugging Face Hub, such as `"Helsinki-NLP/opus-mt-en-de"`, if the package
            huggingface_hub is installed.
        output: The directory to create.
        num_heads: Number of heads of a model of OpenNMT-tf that is not in its catalog.
        activation: Its activation, `"relu"` or `"silu"`.
        source_language, target_language: Languages that a model of several translates between by
            default, such as `"en"` and `"de"`.

    Returns:
        `Run`.

    Raises:
        ValueError: If a file is missing, corrupted or unsafe, the architecture is not supported, or
            `output` is not empty.

    Example:

    >>> run = keras_transformer.import_model("opus-mt-en-de", "runs/opus-en-de")
    >>> translator = keras_transformer.load(run)
    >>> translator.default_search.beam_size
    4
    """
    check_is_free(output)
    with _open_folder(path) as folder:
        model = read_source(folder, num_heads, activation)
        source, target = rewrite(model.source, model.target)
        imported = dataclasses.replace(
            model.imported,
            source=_name(path),
            sha256=digest(model.weights, *model.shards),
            language_tags=model.source.tags or model.imported.language_tags,
        )
        languages = {"source_language": source_language, "target_language": target_language}
        config = dataclasses.replace(_make_config(model, imported, source, target), **languages)
        config.find_languages()  # raises if one is unknown
        translator = _make_translator(model, config, source, target)
    with creating(output) as temporary:
        new = Run(temporary)
        new.write_config(config)
        saved.write(temporary, (translator.source_tokenizer, translator.target_tokenizer))
        new.write_model(translator.model, {"metrics": {}})
    _report(config, len(source.rows), len(target.rows), model.notes)
    return Run(output)


def read_source(
    folder: Path, num_heads: int | None = None, activation: str | None = None
) -> SourceModel:
    """Reads a folder by what it contains; see `import_model`."""
    names, folder = list_files(folder), os.fspath(folder)
    if (num_heads or activation) and DESCRIPTION not in names:
        raise ValueError(
            f"--num-heads and --activation are for OpenNMT-tf, which {folder} is not of."
        )
    try:
        if CONFIG in names:
            kind = read_json(os.path.join(folder, CONFIG)).get("model_type")
            if kind not in READERS:
                raise ValueError(
                    f"{folder}: the model is of the type {kind!r:.40}; only "
                    f"{' and '.join(READERS)} are imported, such as Helsinki-NLP/opus-mt-en-de and "
                    "facebook/m2m100_418M."
                )
            return READERS[kind](folder)
        if any(name.endswith(".npz") for name in names):
            return read_marian(folder)
        if DESCRIPTION in names:
            return read_opennmt_tf(folder, num_heads, activation)
    except (AttributeError, IndexError, KeyError, TypeError) as error:
        raise ValueError(
            f"{folder} has an option or a tensor of another form than such models have, or lacks "
            f"it: {error!r:.200}."
        ) from error
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
    try:
        with zipfile.ZipFile(path) as archive:
            entries = {tuple(x.filename.split("/")): x for x in archive.infolist()}
            # Hidden files are of macOS; the last part of a folder's name is empty.
            files = [x for x in entries if x[-1] and not x[-1].startswith(".")]
            models = [x for x in files if x[-1] == CONFIG or x[-1].endswith(".npz")]
            tops = {x[:-1] for x in models if len(x) == min(map(len, models))}
            if len(tops) != 1:
                raise ValueError(f"{path} must be the zip of one model: give its folder instead.")
            chosen = [entries[x] for x in files if x[:-1] in tops]
            if sum(entry.file_size for entry in chosen) > MAX_ZIP_BYTES:
                raise ValueError(f"{path} is too large: give its folder instead.")
            for entry in chosen:
                entry.filename = os.path.basename(entry.filename)
                archive.extract(entry, folder)
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError) as error:
        raise ValueError(describe_corruption(path, error)) from None


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
        return huggingface_hub.snapshot_download(name, allow_patterns=HUB_FILES)
    except Exception as error:  # of the network, of the Hub, of the disk
        reason = " ".join(str(error).split()).rstrip(".")[:200]
        raise ValueError(
            f"{name} cannot be downloaded from the Hub: check the network, or give a folder that "
            f"you have downloaded ({reason})."
        ) from None


def _name(path):
    name = os.path.normpath(os.fspath(path))
    if not os.path.exists(path):
        return name  # on the Hub
    return os.path.basename(os.path.abspath(name)).removesuffix(".zip")


# --- the model ---


def _make_config(model, imported, source, target):
    """The configuration of the run."""
    config, sizes = resolve_sharing(model), (len(source.rows), len(target.rows))
    is_joint = config.share_embeddings == "all"
    return TrainConfig(
        vocabulary_size=sizes[1],
        source_vocabulary_size=None if is_joint else sizes[0],
        target_vocabulary_size=None if is_joint else sizes[1],
        model_type=saved.model_type(source.model),
        model=config,
        source_end=model.source_end,
        tokens_per_batch=max(TrainConfig.tokens_per_batch, config.max_length),
        imported=imported,
    )


def _make_translator(
    model: SourceModel, config: TrainConfig, source: Rewritten, target: Rewritten
) -> "Translator":
    """Makes the translator, with all weights."""
    from keras_transformer.tokenizers.subword import SubwordTokenizer
    from keras_transformer.training.keras_workarounds import building_zeros
    from keras_transformer.transformer import Transformer
    from keras_transformer.translation.translator import Translator

    options = dataclasses.asdict(config.model)
    with building_zeros():
        transformer = Transformer(len(source.rows), len(target.rows), **options, dtype="float32")
    load_weights(transformer, model, source, target)
    first, second = (SubwordTokenizer(side.model) for side in (source, target))
    return Translator(transformer, first, second, source_end=model.source_end)


def _report(config, num_source_ids, num_target_ids, notes):
    """Prints what was imported on stderr."""
    model, imported = config.model, config.imported
    encoder, decoder = model.depths
    lines = [
        f"{imported.source}: {imported.kind}, licence {imported.licence}",
        f"{encoder}+{decoder} layers of {model.d_model}, {num_source_ids:,} and "
        f"{num_target_ids:,} ids; default search: beam {imported.beam_size}, length penalty "
        f"{imported.length_penalty:g}",
    ]
    languages = config.find_languages()
    if languages.sides:
        options = " and ".join(f"--{side}-language" for side in languages.sides)
        count = len(languages.tokens)
        lines.append(f"{count:,} languages, chosen by {options}, such as {languages.examples}")
    print(*lines, *(f"note: {note}" for note in notes), sep="\n", file=sys.stderr)
