"""Computes again what the tests keep of other systems: `make parity`, PARITY=--write to keep it.

    python -m benchmarks.parity [--write]

It needs the extra `parity`.
"""

import itertools
import json
import math
import sys

import numpy as np

from tests.support.parity import M2M100, SEARCHES, load
from tests.support.paths import FIXTURES

ROUNDING = 2e-5


def compare(file, made, write):
    if write:
        file.write_text(json.dumps(made, ensure_ascii=False), encoding="utf-8")
    sides = [_leaves(one | {"made with": None}) for one in (load(file), made)]
    for kept, found in itertools.zip_longest(*sides):
        are_numbers = isinstance(kept, float) and isinstance(found, float)
        if kept != found and not (are_numbers and math.isclose(kept, found, abs_tol=ROUNDING)):
            sys.exit(f"{file}: {kept!r} is kept, {found!r} is computed with {made['made with']}.")
    print(f"{file} is what is computed with {made['made with']}.")


def _leaves(value):
    if isinstance(value, dict):
        value = sorted(value.items())
    if not isinstance(value, (list, tuple)):
        return [value]
    return [len(value), *itertools.chain.from_iterable(map(_leaves, value))]


def rounded(values, digits):
    return np.round(np.asarray(values, "float64"), digits).tolist()


def _versions():
    import torch
    import transformers

    transformers.logging.set_verbosity_error()
    return {"torch": torch.__version__, "transformers": transformers.__version__}


def deberta():
    """DeBERTa's attention: sentences of 9 and 5 tokens, in distances told apart below 3."""
    import torch
    from transformers import DebertaConfig
    from transformers.models.deberta import modeling_deberta

    sizes = dict(hidden_size=8, num_attention_heads=2, max_relative_positions=3)
    no_dropout = dict(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    how = dict(relative_attention=True, pos_att_type=["c2p", "p2c"])
    layer = modeling_deberta.DisentangledSelfAttention(DebertaConfig(**sizes, **no_dropout, **how))
    random = np.random.default_rng(1)

    def draw(*shape):  # few digits: what is written is what was computed with
        return torch.tensor(np.round(random.normal(size=shape), 3), dtype=torch.float32)

    weights = {name: draw(*weight.shape) for name, weight in layer.state_dict().items()}
    layer.load_state_dict(weights)
    x, table = draw(2, 9, 8), draw(6, 8)
    mask = torch.arange(9) < torch.tensor([[9], [5]])
    with torch.no_grad():
        positions = modeling_deberta.build_relative_position(x, x)
        how = dict(output_attentions=True, relative_pos=positions, rel_embeddings=table)
        output, scores = layer(x, mask[:, None, None] & mask[:, None, :, None], **how)
    arrays = {"x": x, "table": table, "output": output, "scores": scores, **weights}
    found = {name: rounded(array, 7) for name, array in arrays.items()}
    return {"made with": _versions(), "lengths": [9, 5]} | found


def processors():
    """What logits processors make of logits at random, after nine tokens of four."""
    import torch
    from transformers.generation import logits_process as theirs

    from keras_transformer.special_ids import END  # here: OpenNMT-tf's environment has no Keras 3

    random = np.random.default_rng(2)
    tokens, logits = random.integers(4, 8, (3, 9)), np.round(random.normal(size=(3, 10)), 3)
    arguments = torch.tensor(tokens), torch.tensor(logits, dtype=torch.float32)
    made = {
        "repetition_penalty": theirs.RepetitionPenaltyLogitsProcessor(1.5),
        "no_repeat_ngram_size": theirs.NoRepeatNGramLogitsProcessor(2),
        "min_length": theirs.MinLengthLogitsProcessor(10, END),
    }
    found = {name: rounded(process(*arguments), 7) for name, process in made.items()}
    given = {"tokens": tokens.tolist(), "logits": rounded(logits, 7)}
    return {"made with": _versions()} | given | found


def answer(folder, kept):
    """What transformers computes with a model: ids, logits, searches."""
    import torch
    import transformers

    versions = _versions()
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder, dtype=torch.float32).eval()
    # It would replace the last token, for which there is no other reason than the length.
    model.generation_config.forced_eos_token_id = None
    kind = load(folder / "tokenizer_config.json").get("tokenizer_class", "MarianTokenizer")
    tokenizer, forced = getattr(transformers, kind).from_pretrained(folder), {}
    tokenizer.punc_normalizer = lambda text: text  # Moses, which Marian's models do not contain
    lines, target = kept["lines"], kept["target"]
    if "languages" in kept:  # codes of both sides, and the target's token
        tokenizer.src_lang, tokenizer.tgt_lang, token = kept["languages"]
        forced = {"forced_bos_token_id": tokenizer.convert_tokens_to_ids(token)}
    batch = tokenizer(lines, return_tensors="pt", padding=True)
    searches = {}
    with torch.no_grad():
        logits = model(**batch, decoder_input_ids=torch.tensor(target)).logits
        for name, options in SEARCHES.items():
            how = dict(renormalize_logits=True, do_sample=False, early_stopping=False)
            found = model.generate(**batch, **options, **how, **forced)
            pad = model.config.pad_token_id
            rows = [[x for x in row[1:] if x != pad] for row in found.tolist()]
            texts = tokenizer.batch_decode(found, skip_special_tokens=True)
            searches[name] = {"tokens": rows, "texts": texts}
    ids = [tokenizer(line)["input_ids"] for line in lines]
    found = {"ids": ids, "logits": rounded(logits[: len(kept["logits"])], 7), "searches": searches}
    if forced:
        found |= {"languages": kept["languages"], "labels": tokenizer(text_target=lines).input_ids}
    return {"made with": versions, "lines": lines, "target": target} | found


if __name__ == "__main__":
    write = "--write" in sys.argv[1:]
    compare(FIXTURES / "parity" / "deberta.json", deberta(), write)
    compare(FIXTURES / "parity" / "processors.json", processors(), write)
    for file in sorted(
        [*(FIXTURES / "marian").glob("*/answers.json"), *M2M100.glob("*/answers.json")]
    ):
        compare(file, answer(file.parent, load(file)), write)
