"""CTranslate2 as an oracle: an engine that shares nothing with ours but the weights."""

import ctranslate2

from keras_transformer.tokenizers import saved


def translate_with_ctranslate2(path, texts, beam_size, max_length, threads=1, length_penalty=0):
    """Translates with a directory that `export_ctranslate2` wrote.

    Ranked by probability alone, its search stops once the best candidate of a step ends: then, as
    in ours, none alive ranks above the best that has ended. By other rankings the two differ: it
    stops at N ended hypotheses whatever is alive.

    Returns:
        List of (translation, log_prob / length^α).
    """
    source, target = saved.load(path)
    pieces = source.pieces(source(texts)).to_list()
    engine = ctranslate2.Translator(str(path), compute_type="float32", intra_threads=threads)
    results = engine.translate_batch(
        [[piece.decode() for piece in row] for row in pieces],
        max_batch_size=64,
        beam_size=beam_size,
        min_decoding_length=0,  # else END cannot come first, and the others share its probability
        length_penalty=length_penalty,
        max_decoding_length=max_length,
        return_scores=True,
    )
    size = target.vocabulary_size
    ids = {piece.decode(): i for i, piece in enumerate(target.pieces(range(size)).numpy())}
    found = []
    for result in results:
        text = target.detokenize([ids[piece] for piece in result.hypotheses[0]])
        found.append((text.numpy().decode(), result.scores[0]))
    return found
