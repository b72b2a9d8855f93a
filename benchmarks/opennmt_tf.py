"""OpenNMT-tf 2.32, from an environment of its own: `make .venv-opennmt/installed`."""

import os
import tempfile

import numpy as np
import opennmt
import tensorflow as tf

from benchmarks.shapes import SHAPES


def training(shape, steps=1):
    """`steps` training steps by the model's own training function, float32."""
    shape = SHAPES[shape]
    optimizer = opennmt.optimizers.make_optimizer("Adam", 1e-4)
    with tempfile.TemporaryDirectory() as folder:
        model = _model(shape, folder, {"label_smoothing": 0.1})
        model.create_variables(optimizer)
    source, target_in, target_out = (tf.constant(ids) for ids in shape.batch())
    length = tf.fill([shape.rows], shape.length)
    features = {"ids": source, "length": length}
    labels = {"ids": target_in, "ids_out": target_out, "length": length}

    @tf.function
    def update():
        return model.train(features, labels, optimizer)

    def fit():
        for _ in range(steps):
            loss = update()
        loss.numpy()

    return fit


def exported_decoding(shape, rows):
    """Greedy decoding by its SavedModel, pieces to pieces."""
    shape = SHAPES[shape]
    length = {"maximum_decoding_length": shape.steps, "minimum_decoding_length": shape.steps}
    with tempfile.TemporaryDirectory() as folder:
        model = _model(shape, folder, {"beam_width": 1} | length)
        model.create_variables()
        exported = os.path.join(folder, "exported")
        model.export(exported)
        loaded = tf.saved_model.load(exported)
    serve = loaded.signatures["serving_default"]
    names = np.vectorize(_name)(shape.ids(rows, shape.steps, 2))
    request = {"tokens": tf.constant(names), "length": tf.fill([rows], shape.steps)}

    def translate():
        found = serve(**request)["length"].numpy()
        if (found != shape.steps).any():
            raise RuntimeError(f"Expected {shape.steps} tokens of each sentence, got {found}.")
        return loaded and None  # whose resources must stay

    return translate


def _model(shape, folder, params):
    """A model whose vocabulary lies in `folder`."""
    model = opennmt.models.Transformer(
        opennmt.inputters.WordEmbedder(shape.d_model),
        opennmt.inputters.WordEmbedder(shape.d_model),
        num_layers=shape.layers,
        num_units=shape.d_model,
        num_heads=shape.heads,
        ffn_inner_dim=shape.d_ff,
        dropout=shape.dropout,
        attention_dropout=0.0,
        ffn_dropout=0.0,
        share_embeddings=opennmt.models.EmbeddingsSharingLevel.ALL,
        pre_norm=False,
    )
    path = os.path.join(folder, "vocabulary")
    with open(path, "w", encoding="utf-8") as file:
        pieces = ["<blank>", "<s>", "</s>"]  # and one for unknown ones, at the end
        pieces += [_name(i) for i in range(len(pieces), shape.vocabulary - 1)]
        file.write("\n".join(pieces) + "\n")
    model.initialize({"source_vocabulary": path, "target_vocabulary": path}, params)
    return model


def _name(token):
    return f"w{token}"
