"""What other systems compute, kept as numbers, so that tests need none of them: `make parity`.

    python -m tests.support.parity [--write]

Computes again what `tests/fixtures/parity` holds and compares; --write puts it there. Needs PyTorch
and Transformers, the extra `parity`.
"""

import json
import sys

import numpy as np

from tests.support.paths import FIXTURES

FOLDER = FIXTURES / "parity"
TOLERANCE = 1e-6


def deberta():
    """DeBERTa's attention: sentences of 9 and 5 tokens, in distances told apart below 3."""
    import torch
    from transformers import DebertaConfig
    from transformers.models.deberta import modeling_deberta

    sizes = dict(hidden_size=8, num_attention_heads=2, max_relative_positions=3)
    no_dropout = dict(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    how = dict(relative_attention=True, pos_att_type=["c2p", "p2c"])
    config = DebertaConfig(**sizes, **no_dropout, **how)
    layer = modeling_deberta.DisentangledSelfAttention(config)
    random = np.random.default_rng(1)

    def draw(*shape):
        # Few digits: what is written is what was computed with.
        return torch.tensor(np.round(random.normal(size=shape), 3), dtype=torch.float32)

    weights = {name: draw(*weight.shape) for name, weight in layer.state_dict().items()}
    layer.load_state_dict(weights)
    x, table = draw(2, 9, 8), draw(6, 8)
    mask = torch.arange(9) < torch.tensor([[9], [5]])
    with torch.no_grad():
        output, scores = layer(
            x,
            mask[:, None, None] & mask[:, None, :, None],
            output_attentions=True,
            relative_pos=modeling_deberta.build_relative_position(x, x),
            rel_embeddings=table,
        )
    arrays = {"x": x, "table": table, "output": output, "scores": scores, **weights}
    found = {name: np.asarray(array, "float64") for name, array in arrays.items()}
    return {"lengths": [9, 5]} | {name: np.round(x, 7).tolist() for name, x in found.items()}


MAKERS = {"deberta": deberta}


def read(name):
    """What a system has computed: {name: array}, its versions left out."""
    found = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    return {key: np.array(value) for key, value in found.items() if key != "made with"}


def main(write):
    """Makes everything, and compares it with what is there."""
    import torch
    import transformers

    versions = {"torch": torch.__version__, "transformers": transformers.__version__}
    FOLDER.mkdir(exist_ok=True)
    for name, make in MAKERS.items():
        made = make()
        if write:
            lines = [f" {json.dumps(key)}: {json.dumps(value)}" for key, value in made.items()]
            head = f" {json.dumps('made with')}: {json.dumps(versions)}"
            text = "{\n" + ",\n".join([head, *lines]) + "\n}\n"
            (FOLDER / f"{name}.json").write_text(text, encoding="utf-8")
        stored = read(name)
        if stored.keys() != made.keys():
            sys.exit(f"{name}.json holds other arrays than are made now.")
        largest = max(np.abs(stored[key] - np.array(made[key])).max() for key in made)
        print(f"{name}: differs by at most {largest:.1e}, with {versions}")
        if largest > TOLERANCE:
            sys.exit(f"{name}.json is not what is computed now.")


if __name__ == "__main__":
    main("--write" in sys.argv[1:])
