"""A small model of two languages: trained by transformers, imported, compared, and trained on.

    python -m benchmarks.trained_languages [--folder FOLDER] [--epochs 4]

transformers trains an NLLB model of a small size on Multi30k in both directions. It is imported,
and ids, logits and translations of the validation set are compared with those of transformers; then
it is fine-tuned into one direction. Needs the extra `parity`; an hour on one core.
"""

import argparse
import json
import pathlib
import random
import time

import numpy as np
import torch  # before TensorFlow
from transformers import M2M100Config, M2M100ForConditionalGeneration, NllbTokenizer

import keras_transformer as kt
from keras_transformer.data.text_files import read_lines
from keras_transformer.presets import change
from keras_transformer.tools.importers.importing import read_source
from keras_transformer.tools.importers.vocabularies import rewrite
from keras_transformer.train import train as train_run
from keras_transformer.translation.corpus_scores import corpus_scores

TEXT = pathlib.Path(__file__).parents[2] / "shared/data/multi30k/raw"
CODES = {"en": "eng_Latn", "de": "deu_Latn"}
ODD = ["", " ", "  two  spaces ", "🙂 日本", "deu_Latn", "a deu_Latn </s> b", "\x07 ½ ﬁ"]
SIZES = dict(encoder_layers=3, decoder_layers=3, encoder_ffn_dim=384, decoder_ffn_dim=384)
SIZES |= dict(encoder_attention_heads=4, decoder_attention_heads=4, d_model=192)
TOKENS, PEAK, WARM_UP, ROWS = 2000, 1.5e-3, 400, 100


def read(name):
    return {side: read_lines(TEXT / f"{name}.{side}.gz") for side in CODES}


def make_tokenizer(folder, text):
    """Learns pieces, and writes the files of a tokenizer as fine-tuned models have them."""
    import sentencepiece

    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "sentencepiece.bpe.model"
    with path.open("wb") as file:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter([*text["en"], *text["de"]]),
            model_writer=file,
            vocab_size=6000,
            model_type="bpe",
            character_coverage=0.9999,
            minloglevel=2,
        )
    options = {"tokenizer_class": "NllbTokenizer", "extra_special_tokens": [*CODES.values()]}
    (folder / "tokenizer_config.json").write_text(json.dumps(options))
    tokenizer = NllbTokenizer.from_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return tokenizer


def encode(tokenizer, sources, targets, source, target):
    """Ids of both sides, with the tokens of their languages."""
    tokenizer.src_lang, tokenizer.tgt_lang = CODES[source], CODES[target]
    found = tokenizer(sources, text_target=targets)
    return list(zip(found["input_ids"], found["labels"], strict=True))


def train(folder, epochs):
    """Trains with transformers; labels are smoothed."""
    text, started = read("train"), time.perf_counter()
    tokenizer = make_tokenizer(folder, text)
    size = len(tokenizer)
    options = dict(max_position_embeddings=256, scale_embedding=True, dropout=0.1)
    torch.manual_seed(1)
    model = M2M100ForConditionalGeneration(M2M100Config(vocab_size=size, **SIZES, **options))
    pairs = encode(tokenizer, text["en"], text["de"], "en", "de")
    pairs += encode(tokenizer, text["de"], text["en"], "de", "en")
    rng = random.Random(1)
    batches = list(batches_of(sorted(pairs, key=lambda pair: max(map(len, pair)))))
    optimizer = torch.optim.Adam(model.parameters(), betas=(0.9, 0.98))
    loss_of = torch.nn.CrossEntropyLoss(ignore_index=-100, label_smoothing=0.1)
    step = 0
    for epoch in range(epochs):
        rng.shuffle(batches)
        total = 0.0
        for rows in batches:
            step += 1
            for group in optimizer.param_groups:
                group["lr"] = PEAK * min(step / WARM_UP, (WARM_UP / step) ** 0.5)
            source, labels = (
                pad(side, by) for side, by in zip(zip(*rows, strict=True), (1, -100), strict=True)
            )
            logits = model(source, attention_mask=source.ne(1), labels=labels).logits
            loss = loss_of(logits.flatten(0, 1), labels.flatten())
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            total += loss.item()
        seconds = time.perf_counter() - started
        print(f"epoch {epoch + 1}: {total / len(batches):.3f} after {seconds:.0f} s", flush=True)
    model.save_pretrained(folder)


def batches_of(pairs):
    """Lists of pairs of similar lengths."""
    some, longest = [], 0
    for pair in pairs:
        longest = max(longest, *map(len, pair))
        if some and longest * (len(some) + 1) > TOKENS:
            yield some
            some, longest = [], max(map(len, pair))
        some.append(pair)
    yield some


def pad(rows, by):
    longest = max(map(len, rows))
    return torch.tensor([[*row, *[by] * (longest - len(row))] for row in rows])


def compare(folder, translator):
    """Prints how many ids and translations are the same, and how far logits are apart."""
    model = M2M100ForConditionalGeneration.from_pretrained(folder).eval()
    tokenizer, text = NllbTokenizer.from_pretrained(folder), read("val")
    imported = read_source(folder)
    rows = rewrite(imported.source, imported.target)[0].rows
    furthest = 0.0
    for source, target in (("en", "de"), ("de", "en")):
        lines, others = text[source] + ODD, text[target] + ODD
        pairs = encode(tokenizer, lines, others, source, target)
        codes = {"source_language": CODES[source], "target_language": CODES[target]}
        languages = translator.language_rows([x.encode() for x in lines], *codes.values())
        ours, empty = translator.read_source(lines, languages)
        ours = [rows[row[row != kt.PAD]].tolist() for row in ours.numpy()]
        same = [
            x == y or not any(text.split())
            for x, (y, _), text in zip(ours, pairs, lines, strict=True)
        ]
        labels = translator.target_tokenizer(others, end=True).to_list()
        first = rows[translator.language_ids[CODES[target]]]
        same_labels = [[first, *rows[x]] == y for x, (_, y) in zip(labels, pairs, strict=True)]
        for side, texts, equal in (("sources", lines, same), ("targets", others, same_labels)):
            differ = [x for x, y in zip(texts, equal, strict=True) if not y]
            print(f"{source}-{target}: ids of {sum(equal)} {side} are equal, all but {differ}")
        forced = {"forced_bos_token_id": int(first), "do_sample": False, "max_new_tokens": 100}
        for beam_size, patience in ((1, 1.0), (4, 1.0), (4, 2.0)):
            search = kt.SearchConfig(beam_size, 1.0, patience, "length", max_output_length=99)
            found = translator.translate_n_best(
                lines[: -len(ODD)], search=search, n_best=1, **codes
            )
            equal = better = 0
            for start in range(0, len(lines) - len(ODD), ROWS):
                batch = pad([x for x, _ in pairs[start : start + ROWS]], 1)
                with torch.no_grad():
                    answer = model.generate(
                        batch,
                        attention_mask=batch.ne(1),
                        num_beams=beam_size,
                        **forced,
                        return_dict_in_generate=True,
                        output_scores=True,
                    )
                theirs = tokenizer.batch_decode(answer.sequences, skip_special_tokens=True)
                scores = answer.get("sequences_scores", [None] * len(theirs))
                some = found[start : start + ROWS]
                for (one,), other, score in zip(some, theirs, scores, strict=False):
                    equal += one.text == other
                    better += one.text != other and score is not None and one.score > score - 1e-4
            how = f"beam {beam_size}, patience {patience}"
            print(f"  {how}: {equal} translations are equal, {better} have a better score")
        for source_ids, label in pairs[:200]:
            given = [2, *label[:-1]]
            inverse = {int(row): number for number, row in enumerate(rows)}
            if not {*source_ids, *label} <= inverse.keys():
                continue
            mine = [[inverse[x] for x in ids] for ids in (source_ids, given)]
            mine[1][0] = kt.START
            with torch.no_grad():
                theirs = model(torch.tensor([source_ids]), decoder_input_ids=torch.tensor([given]))
            logits = translator.model(tuple(np.array([ids], "int32") for ids in mine))
            difference = np.array(logits)[0, :, 4:] - theirs.logits.numpy()[0][:, rows[4:]]
            furthest = max(furthest, np.abs(difference).max())
    print(f"largest difference of a logit: {furthest:.1e}")


def fine_tune(folder, run):
    """Fine-tunes into one direction; prints BLEU of both, before and after."""
    test = read("test_2016_flickr")
    config = change(
        run.read_config(),
        {
            "start_from": str(run),
            "train_source": str(TEXT / "train.de.gz"),
            "train_target": str(TEXT / "train.en.gz"),
            "valid_source": str(TEXT / "val.de.gz"),
            "valid_target": str(TEXT / "val.en.gz"),
            "source_language": CODES["de"],
            "target_language": CODES["en"],
            "tokens_per_batch": TOKENS,
            "epochs": 2,
        },
    )
    tuned = folder / "tuned"
    train_run(config, tuned)
    for name, path in (("imported", run), ("fine-tuned", tuned)):
        translator = kt.load(path, "float32")
        for source, target in (("en", "de"), ("de", "en")):
            codes = {"source_language": CODES[source], "target_language": CODES[target]}
            found = translator.translate(test[source], beam_size=4, **codes)
            bleu = corpus_scores(found, test[target], "13a")["bleu"]
            print(f"{name}, {source}-{target}: BLEU {bleu:.2f} on test2016", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--folder", type=pathlib.Path, default="runs/trained-languages")
    parser.add_argument("--epochs", type=int, default=4)
    options = parser.parse_args()
    model = options.folder / "model"
    if not (model / "model.safetensors").exists():
        train(model, options.epochs)
    run = kt.import_model(model, options.folder / "run")
    compare(model, kt.load(run, "float32"))
    fine_tune(options.folder, run)


if __name__ == "__main__":
    main()
