"""Equal to what other systems have computed: see tests/support/parity.py."""

import numpy as np
import pytest

import keras_transformer as kt
from tests.support import parity
from tests.support.layer_harness import assert_close


@pytest.fixture(scope="module")
def deberta():
    return parity.read("deberta")


def attention(golden, heads=2):
    """Ours with the weights of DeBERTa's: its projections join query, key and value by head."""
    x = golden["x"]
    _, length, width = x.shape
    layer = kt.MultiHeadAttention(heads, width // heads, positions="disentangled", max_distance=3)
    layer.build(x.shape, x.shape)
    joined = golden["in_proj.weight"].reshape(heads, 3, width // heads, width)
    for i, name in enumerate(("query", "key", "value")):
        kernel = joined[:, i].transpose(2, 0, 1)
        bias = golden.get(f"{name[0]}_bias", np.zeros(width)).reshape(heads, -1)
        getattr(layer, f"{name}_dense").set_weights([kernel, bias])
    identity = np.eye(width).reshape(heads, -1, width)  # theirs ends with the heads joined
    layer.output_dense.set_weights([identity, np.zeros(width)])
    positions = layer.positions
    positions.table.set_weights([golden["table"]])

    def kernel(name):
        return golden[f"{name}.weight"].T.reshape(width, heads, -1)

    positions.key_dense.set_weights([kernel("pos_proj")])
    bias = golden["pos_q_proj.bias"].reshape(heads, -1)
    positions.query_dense.set_weights([kernel("pos_q_proj"), bias])
    return layer


def test_disentangled_attention_is_debertas(deberta):
    layer, x = attention(deberta), deberta["x"].astype("float32")
    mask = np.arange(x.shape[1]) < deberta["lengths"][:, None]
    output, scores = layer(x, x, value_mask=mask, return_attention_scores=True)
    seen = mask[..., None]  # theirs has other numbers where there is no token
    assert_close(np.where(seen, output, 0), np.where(seen, deberta["output"], 0))
    seen = mask[:, None, :, None]
    assert_close(np.where(seen, scores, 0), np.where(seen, deberta["scores"], 0))
