"""Random Marian models, and what transformers computes with them: part of `make parity`.

    python -m tests.support.parity_marian [--write]

Computes again what tests/fixtures/marian holds; --write makes it. Needs torch and transformers.
"""

import json
import pathlib
import sys

import numpy as np

from tests.support import marian_models
from tests.support.marian_models import SENTENCES, SIDES, draw, make_vocabulary, train_spm

D_MODEL, HEADS, D_FF, LAYERS = 16, 2, 24, (2, 1)
# Name: sharing, ids and the kind of the file. With these seeds and biases of END,
# translations have many lengths.
FIXTURES = {
    "tied": dict(seed=4, end_bias=3.5, file="safetensors"),
    "separate": dict(seed=2, end_bias=2.0, separate=True, style="tc-big", file="zip"),
    "untied": dict(seed=5, end_bias=3.5, tied=False, file="legacy", activation="relu"),
    "half": dict(seed=6, end_bias=3.5, style="tc-big", file="zip", half=True),
    "added": dict(seed=8, end_bias=3.5, file="safetensors", added=("<person>", "x-99")),
}
SEARCHES = {
    "greedy": dict(num_beams=1),
    "beam 4": dict(num_beams=4, length_penalty=1.0),
    "beam 6": dict(num_beams=6, length_penalty=0.6),
}
FEW = 4  # lines whose logits are kept
SHARPNESS = 2.0  # of the probabilities; if they are flat, END below a beam's best may win
LONGEST = 31  # tokens of a translation
LINES = [*SENTENCES["source"][:5], "The sun, too late!", "A 漢 dog", "é", ">>fra<< The snow."]
# A space follows each added token: without one, transformers begins a word.
ADDED_LINES = [
    "A <person> reads.",
    "<person> <person> sits",
    "Two(x-99 dogs",
    "The x-99",
    "<person>",
]
ROUNDED = 8  # to a multiple of it, the rows of a vocabulary with added tokens are filled up


# --- with transformers ---


def make_model(folder, file, **how):
    """Writes the folder of a model with random weights."""
    import torch
    from transformers import MarianMTModel

    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    separate, tied = how.get("separate", False), how.get("tied", True)
    models = [train_spm(side) for side in SIDES]
    groups = [[models[0]], [models[1]]] if separate else [models]
    style = how.get("style", "opus")
    vocabularies = [make_vocabulary(*group, style=style) for group in groups]
    if separate:  # transformers has one id of END, and of PAD, for both sides
        vocabularies = _align(vocabularies)
    names = "vocab.json", "target_vocab.json"
    for name, pieces in zip(names, vocabularies, strict=False):
        ids = {piece: id for id, piece in enumerate(pieces)}
        (folder / name).write_text(json.dumps(ids, ensure_ascii=False), encoding="utf-8")
    for side, model in zip(SIDES, models, strict=True):
        (folder / f"{side}.spm").write_bytes(model)
    target, added = vocabularies[-1], how.get("added", ())
    pad, end = target.index("<pad>"), target.index("</s>")
    rows = [len(x) for x in vocabularies]
    if added:
        tokens = {token: len(target) + number for number, token in enumerate(added)}
        (folder / "added_tokens.json").write_text(json.dumps(tokens))
        rows = [-(-(rows[0] + len(added)) // ROUNDED) * ROUNDED]
    config = _make_config(rows, pad, end, separate, tied, how)
    model = MarianMTModel(config)
    pieces = len(target) + len(added)
    _draw_weights(model, pad, end, how.get("seed", 1), how.get("end_bias", 1.5), pieces)
    model.eval()
    if how.get("half"):
        model = model.half()
    generation = dict(num_beams=4, max_length=32, bad_words_ids=[[pad]], forced_eos_token_id=end)
    model.generation_config.update(
        **generation, eos_token_id=end, pad_token_id=pad, decoder_start_token_id=pad
    )
    model.save_pretrained(folder)
    if file != "safetensors":
        (folder / "model.safetensors").unlink()
        state = model.state_dict()
        if how.get("half"):  # a table of positions in half precision would be used as it is
            state = {name: x for name, x in state.items() if "embed_positions" not in name}
        modern = file == "zip"
        torch.save(state, folder / "pytorch_model.bin", _use_new_zipfile_serialization=modern)
    tokenizer = {"separate_vocabs": separate, "model_max_length": 96}
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer))
    (folder / "README.md").write_text("---\nlanguage: en\nlicense: cc-by-4.0\n---\n")


def _make_config(vocabularies, pad, end, separate, tied, how):
    from transformers import MarianConfig

    return MarianConfig(
        vocab_size=vocabularies[0],
        decoder_vocab_size=vocabularies[-1],
        max_position_embeddings=96,
        **{f"{x}_layers": n for x, n in zip(("encoder", "decoder"), LAYERS, strict=True)},
        **{f"{x}_attention_heads": HEADS for x in ("encoder", "decoder")},
        **{f"{x}_ffn_dim": D_FF for x in ("encoder", "decoder")},
        d_model=D_MODEL,
        activation_function=how.get("activation", "swish"),
        scale_embedding=True,
        share_encoder_decoder_embeddings=tied and not separate,
        tie_word_embeddings=tied,
        pad_token_id=pad,
        eos_token_id=end,
        decoder_start_token_id=pad,
        forced_eos_token_id=end,
    )


def _align(vocabularies):
    """Gives two vocabularies the same ids of <pad> and </s>: the last ones of the shorter."""
    size = min(map(len, vocabularies))
    aligned = []
    for pieces in vocabularies:
        pieces = [piece for piece in pieces if piece not in ("<pad>", "</s>")]
        pieces[size - 2 : size - 2] = ["</s>", "<pad>"]
        aligned.append(pieces)
    return aligned


def _draw_weights(model, pad, end, seed, end_bias, pieces):
    import torch

    random = np.random.default_rng(seed)
    done = set()
    with torch.no_grad():
        for name, weight in model.state_dict().items():
            if weight.data_ptr() in done or "embed_positions" in name:
                continue
            done.add(weight.data_ptr())
            weight.copy_(torch.from_numpy(draw(random, name, tuple(weight.shape))))
        last = model.model.decoder.layers[-1].final_layer_norm
        last.weight *= SHARPNESS
        bias = model.final_logits_bias
        bias[0, pad], bias[0, end] = 0.0, end_bias  # translations of several lengths
        bias[0, pieces:] = -20.0  # what fills up is not produced
        for embedding in (model.model.encoder.embed_tokens, model.model.decoder.embed_tokens):
            embedding.weight[pad] = 0


def compute_answers(folder, lines):
    """What transformers computes with a model: logits, ids, searches, texts."""
    import torch
    import transformers

    transformers.logging.set_verbosity_error()
    model = transformers.MarianMTModel.from_pretrained(folder, dtype=torch.float32).eval()
    # It would replace the last token, for which there is no other reason than the length.
    model.generation_config.forced_eos_token_id = None
    tokenizer = transformers.MarianTokenizer.from_pretrained(folder)
    tokenizer.punc_normalizer = lambda text: text  # Moses, which Marian's models do not contain
    batch = tokenizer(list(lines), return_tensors="pt", padding=True)
    size = model.config.decoder_vocab_size
    size = min(size, len(tokenizer))
    drawn = np.random.default_rng(2).integers(2, size - 3, (len(lines), 6))
    target = torch.tensor(drawn)
    target[:, 0] = model.config.decoder_start_token_id
    answers = {
        "lines": list(lines),
        "ids": [tokenizer(line)["input_ids"] for line in lines],
        "target": target.tolist(),
        "searches": {},
    }
    with torch.no_grad():
        logits = model(**batch, decoder_input_ids=target).logits[:FEW]
        answers["logits"] = np.round(logits.numpy().astype("float64"), 7).tolist()
        for name, options in SEARCHES.items():
            found = model.generate(
                **batch, **options, renormalize_logits=True, do_sample=False, early_stopping=False
            )
            rows = [
                [x for x in row[1:] if x != model.config.pad_token_id] for row in found.tolist()
            ]
            texts = tokenizer.batch_decode(found, skip_special_tokens=True)
            answers["searches"][name] = {"tokens": rows, "texts": texts}
    versions = {"torch": torch.__version__, "transformers": transformers.__version__}
    return {"made with": versions} | answers


def main(write):
    """Compares what is computed with the answers that are there, or makes both again."""
    for name, how in FIXTURES.items():
        place = marian_models.FOLDER / name
        if write:
            make_model(place, **how)
        answers = compute_answers(place, LINES + (ADDED_LINES if "added" in how else []))
        file = place / "answers.json"
        if write:
            file.write_text(json.dumps(answers, ensure_ascii=False), encoding="utf-8")
            continue
        stored = json.loads(file.read_text(encoding="utf-8"))
        differ = np.abs(np.array(stored["logits"]) - answers["logits"]).max()
        same = all(stored[key] == answers[key] for key in ("ids", "searches"))
        print(f"{name}: logits differ by at most {differ:.1e}; ids and searches equal: {same}")
        if differ > 1e-5 or not same:
            sys.exit(f"{file} is not what is computed now.")


# --- with this package ---


def compare(folder, output, patience=1.0, searches=SEARCHES):
    """Imports a model and compares it with its answers.

    Args:
        folder: Folder of the model.
        output: Directory of the run to create.
        patience: `beam_patience` of the searches.
        searches: Names of those that are compared.

    Returns:
        Dict of `lines`, their number; `logits`, the largest difference; of `ids` and each search
        the numbers of equal rows; and for each search how many rows have a worse score.
    """
    import keras_transformer as kt
    from keras_transformer.tools.importers.importing import read_source
    from keras_transformer.tools.importers.vocabularies import rewrite

    folder = pathlib.Path(folder)
    answers = json.loads((folder / "answers.json").read_text(encoding="utf-8"))
    kt.import_model(folder, output)
    translator = kt.load(output, "float32")
    model, source = translator.model, read_source(folder)
    rows = [side.rows for side in rewrite(source.source, source.target)]
    lines = answers["lines"]
    ids = translator.source_tokenizer(lines, end=True)
    theirs = [rows[0][row].tolist() for row in ids.to_list()]
    figures = {"lines": len(lines), "ids": _count_equal(theirs, answers["ids"])}
    ours = [{int(id): number for number, id in reversed([*enumerate(side)])} for side in rows]
    given = [[ours[0][id] for id in row] for row in answers["ids"]]
    padded = np.zeros((len(given), max(map(len, given))), "int32")
    for number, row in enumerate(given):
        padded[number, : len(row)] = row
    inputs = np.array([[kt.START, *(ours[1][id] for id in row[1:])] for row in answers["target"]])
    logits = np.array(model((padded, inputs)))[:FEW]
    kept = model.suppressed.numpy() == 0
    expected = np.array(answers["logits"])[..., rows[1][kept]]
    figures["logits"] = float(np.abs(logits[..., kept] - expected).max())
    for name in searches:
        options = SEARCHES[name]
        arguments = model.make_step(), model.initial_state(padded), len(lines), LONGEST
        tokens, lengths, log_prob = kt.search(
            *arguments,
            beam_size=options["num_beams"],
            length_penalty=options.get("length_penalty", 1.0),
            length_norm="length",
            beam_patience=patience if options["num_beams"] > 1 else 1.0,
        )
        best, expected = np.array(tokens)[:, 0], answers["searches"][name]["tokens"]
        found = [[int(rows[1][id]) for id in row if id != kt.PAD] for row in best]
        figures[name] = _count_equal(found, expected)
        theirs = [[ours[1][id] for id in row] for row in expected]
        scores = _log_probs(model, padded, theirs)
        alpha = options.get("length_penalty", 1.0)
        better = np.array(log_prob)[:, 0] / np.array(lengths)[:, 0] ** alpha
        worse = better < scores / np.array([*map(len, theirs)]) ** alpha - 1e-4
        figures[f"{name} worse"] = int(worse.sum())
    return figures


def _log_probs(model, source, rows):
    """The log-probabilities of target ids."""
    import keras_transformer as kt

    target = np.full((len(rows), 1 + max(map(len, rows))), kt.PAD)
    for number, row in enumerate(rows):
        target[number, : 1 + len(row)] = [kt.START, *row]
    logits = np.array(model((source, target[:, :-1])), "float64")
    logits = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    picked = np.take_along_axis(logits, target[:, 1:, None], -1)[..., 0]
    return np.where(target[:, 1:] == kt.PAD, 0.0, picked).sum(-1)


def _count_equal(rows, others):
    return sum(row == other for row, other in zip(rows, others, strict=True))


if __name__ == "__main__":
    main("--write" in sys.argv[1:])
