"""CTranslate2 as an oracle: an engine that shares nothing with ours but the weights."""

import ctranslate2

from keras_transformer.tokenizers import saved


def translate_with_ctranslate2(path, texts, beam_size, max_length, threads=1, length_penalty=0):
    """Translates with what `export_ctranslate2` wrote: list of (translation, log_prob / length^α).

    Ranked by probability alone, its search stops once the best candidate of a step ends: then, as
    in ours, none alive ranks above the best that has ended. By other rankings the two differ: it
    stops at N ended hypotheses whatever is alive.
    """
    source, target = saved.load(path)
    engine = ctranslate2.Translator(str(path), compute_type="float32", intra_threads=threads)
    rows = [[x.decode() for x in row] for row in source.pieces(source(texts)).to_list()]
    options = dict(beam_size=beam_size, length_penalty=length_penalty, return_scores=True)
    # From 0 on: else END cannot come first, and the others share its probability.
    options |= dict(min_decoding_length=0, max_decoding_length=max_length, max_batch_size=64)
    results = engine.translate_batch(rows, **options)
    size = target.vocabulary_size
    ids = {piece.decode(): i for i, piece in enumerate(target.pieces(range(size)).numpy())}
    rows = [[ids[piece] for piece in result.hypotheses[0]] for result in results]
    texts = [target.detokenize(row).numpy().decode() for row in rows]
    return [(text, result.scores[0]) for text, result in zip(texts, results, strict=True)]
