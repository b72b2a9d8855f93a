"""Real sentences: how full training batches are, and translation from text to text."""

import os

import numpy as np

import keras_transformer as kt
from keras_transformer.data.text_files import read_lines, read_pairs
from keras_transformer.presets import get_preset

SPLITS = {"train": "train", "test": "test_2016_flickr"}


def file(corpus, split, language):
    """One of the tokenised files of Multi30k."""
    return os.path.join(corpus, f"{SPLITS[split]}.lc.norm.tok.{language}.gz")


def training(corpus, run, steps=10):
    """`steps` training steps of the preset tiny on batches as its training reads them, cores apart.

    The result is the number of target tokens, padding left out.
    """
    import keras

    from benchmarks.timed_fit import TimedFit

    parallel_microbatches = kt.configure_threads()
    preset, tokenizer = get_preset("tiny"), kt.load(run).target_tokenizer
    dataset = _batches(corpus, run)
    keras.utils.set_random_seed(1)
    sizes = vars(preset.model)
    model = kt.Transformer(tokenizer.vocabulary_size, tokenizer.vocabulary_size, **sizes)
    model.parallel_microbatches = parallel_microbatches
    model.compile(kt.EMAAdam(1e-4), kt.SmoothedCrossEntropy(0.1), jit_compile=preset.jit_compile)
    part = dataset.take(steps).cache()
    tokens = sum(int(np.count_nonzero(target)) for _, target in part.as_numpy_iterator())
    return TimedFit(model, part, result=tokens)


def padding(corpus, run):
    """Shares of padding in a pass over the training data, source and target, as the result."""
    dataset = _batches(corpus, run)

    def count():
        sizes, filled = np.zeros(2), np.zeros(2)
        for (source, _), target in dataset.as_numpy_iterator():
            sizes += source.size, target.size
            filled += np.count_nonzero(source), np.count_nonzero(target)
        return (1 - filled / sizes).tolist()

    return count


def translation(corpus, run, beam_size=1, apart=False):
    """Our translator in memory, text to text; the result is the number of sentences.

    `apart`: one batch on each core instead of all cores on one batch, as the command line does.
    """
    if apart:
        kt.configure_threads()
    translator, sources = kt.load(run), read_lines(file(corpus, "test", "en"))
    search = kt.SearchConfig(beam_size=beam_size)
    return lambda: len(translator.translate(sources, search=search))


def exported_translation(corpus, run):
    """The same through the exported SavedModel, loaded as a server loads it, XLA off."""
    import tempfile

    from keras_transformer.presets import ExportConfig
    from keras_transformer.serving.saved_model import export
    from keras_transformer.serving.server_process import ServerProcess
    from keras_transformer.translation.sentences import as_bytes
    from keras_transformer.translation.translator import in_threads

    rows = as_bytes(read_lines(file(corpus, "test", "en")))
    lengths = list(map(len, rows))
    with tempfile.TemporaryDirectory() as folder:
        config = ExportConfig(signatures=())
        server = ServerProcess(export(kt.load(run), folder, config=config))

    def translate(chosen):
        return server.predict([rows[i] for i in chosen])["text"]

    return lambda: len(in_threads(translate, lengths, 256))


def ctranslate2_translation(corpus, run, beam_size=1, compute_type="float32", apart=False):
    """CTranslate2 with the same weights, from text to text by sentencepiece; `apart` as above."""
    import tempfile

    import ctranslate2
    import sentencepiece

    from keras_transformer.tools.ctranslate2 import export_ctranslate2

    translator, sources = kt.load(run), read_lines(file(corpus, "test", "en"))
    with tempfile.TemporaryDirectory() as folder:
        path = export_ctranslate2(translator, os.path.join(folder, "model"))
        of_batches, of_operations = (os.cpu_count(), 1) if apart else (1, os.cpu_count())
        engine = ctranslate2.Translator(
            path,
            compute_type=compute_type,
            inter_threads=of_batches,
            intra_threads=of_operations,
        )
    processor = sentencepiece.SentencePieceProcessor(model_proto=translator.source_tokenizer.model)

    def translate():
        pieces = processor.encode(sources, out_type=str)
        results = engine.translate_batch(pieces, beam_size=beam_size, max_batch_size=64)
        return len(processor.decode([result.hypotheses[0] for result in results]))

    return translate


def _batches(corpus, run):
    """The training set in batches, cut into the pieces of a run."""
    preset, translator = get_preset("tiny"), kt.load(run)
    pairs = read_pairs(*(file(corpus, "train", language) for language in ("en", "de")))
    tokenizers = translator.source_tokenizer, translator.target_tokenizer
    return kt.make_dataset(
        pairs, *tokenizers, preset.tokens_per_batch, max_length=preset.model.max_length
    )
