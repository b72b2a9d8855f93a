"""Imports a trained model and compares it with transformers: `make opus`, `make languages`.

    python benchmarks/real_model.py NAME [--source FILE] [--lines 200]
        [--source-language en --target-language de]

Needs a network, and the extra `parity`. Downloads NAME from the Hub, by default of Helsinki-NLP,
imports it, translates the first lines of a text with both, greedily and with the model's own beam,
exports the run, checks the export, and prints one verdict.
"""

import argparse
import pathlib
import sys
import tempfile

import keras_transformer as kt
from keras_transformer.data.text_files import read_lines

TEXT = pathlib.Path(__file__).parents[2] / "shared/data/multi30k/raw/test_2016_flickr.en.gz"
BATCH = 20
LEAST_EQUAL = 0.98  # of the lines: rounding decides ties


def translate_with_transformers(name, lines, beam_size, languages):
    """Translations by transformers, with a bias before the softmax as here."""
    import torch
    from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

    tokenizer, options, token = AutoTokenizer.from_pretrained(name), {}, ""
    tokenizer.punc_normalizer = lambda text: text  # not done here
    if languages:
        token = languages.tokens[languages.target]
        if languages.is_forced:
            tokenizer.src_lang = languages.source
            options["forced_bos_token_id"] = tokenizer.convert_tokens_to_ids(token)
        else:
            lines = [f"{token} {line}" for line in lines]
    if beam_size is not None:
        options["num_beams"] = beam_size
    model = AutoModelForSeq2SeqLM.from_pretrained(name, dtype=torch.float32).eval()
    found = []
    for start in range(0, len(lines), BATCH):
        batch = lines[start : start + BATCH]
        inputs = tokenizer(batch, return_tensors="pt", padding=True, truncation=True)
        with torch.no_grad():
            tokens = model.generate(**inputs, **options, renormalize_logits=True, do_sample=False)
        texts = tokenizer.batch_decode(tokens, skip_special_tokens=True)
        found += [text.removeprefix(token).strip() for text in texts]  # M2M100's leaves the token
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("name")
    parser.add_argument("--source", type=pathlib.Path, default=TEXT)
    parser.add_argument("--lines", type=int, default=200)
    parser.add_argument("--source-language")
    parser.add_argument("--target-language")
    options = parser.parse_args()
    name = options.name if "/" in options.name else f"Helsinki-NLP/{options.name}"
    lines = read_lines(options.source)[: options.lines]
    problems = []
    with tempfile.TemporaryDirectory() as folder:
        languages = options.source_language, options.target_language
        run = kt.import_model(name, f"{folder}/run", None, None, *languages)
        translator = kt.load(run, "float32")
        for title, search, beam in (
            ("greedy", kt.SearchConfig(), 1),
            ("own beam", translator.default_search, None),
        ):
            ours = translator.translate(lines, search=search)
            theirs = translate_with_transformers(name, lines, beam, translator.languages)
            pairs = list(zip(lines, ours, theirs, strict=True))
            different = [pair for pair in pairs if pair[1].strip() != pair[2].strip()]
            print(f"{title}: {len(lines) - len(different)} of {len(lines)} lines are equal")
            for pair in different[:5]:
                print(*(f"    {text}" for text in pair), sep="\n")
            if len(different) > (1 - LEAST_EQUAL) * len(lines):
                problems.append(f"{title} differs in {len(different)} lines")
        path = kt.export(translator, f"{folder}/export", pairs=[(x, x) for x in lines[:5]])
        served, _ = kt.load_saved_model(path)(lines)
        if served != translator.translate(lines, search=kt.SearchConfig()):
            problems.append("the export translates differently")
    print(f"{name}: {'; '.join(problems) or 'ok'}")
    sys.exit(bool(problems))


if __name__ == "__main__":
    main()
