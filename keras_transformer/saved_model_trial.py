"""Tries a saved model before it is published: does it still answer as the model in memory does?

It is loaded twice. `tf.saved_model.load` is how Python reads it, and rebuilds objects. A server
imports the graph into a session and restores the variables that the saver lists; a model can pass
the first and fail the second.
"""

import math
import os

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

from keras_transformer.saved_model_check import SIGNATURE

# They need not make sense in the model's language: empty, short, long, another script, unknown
# symbols, not even UTF-8.
TRIAL_ROWS = (
    b"",
    b"a",
    b"The quick brown fox jumps over the lazy dog. " * 4,
    "Zwölf Boxkämpfer — 東京 🙂".encode(),
    b"\xff\xfe\x00",
)


def check_answers(translator, version_dir):
    """Compares a saved translator with the one in memory.

    Args:
        translator: the tf.Module that was saved.
        version_dir: path of the directory that holds `saved_model.pb`.

    Raises:
        ValueError: if an answer differs, or is one that a server could not put into JSON.
    """
    for loader in (_load_as_python, _load_as_server):
        serve = loader(version_dir)
        for rows in (TRIAL_ROWS, ()):
            before, after = answers(translator.serve, rows), answers(serve, rows)
            for row, *both in zip(rows, *before, *after, strict=True):
                _check_answer(row, both[:2], both[2:])


def answers(serve, rows):
    """Runs one batch.

    Args:
        serve: a function from `text`, a string tensor, to a dictionary of texts and log_probs.
        rows: a sequence of B byte strings.

    Returns:
        A list of B texts, in bytes, and a list of B floats.

    Raises:
        ValueError: if there is not one value for each row.
    """
    outputs = serve(text=tf.constant(list(rows), tf.string, shape=[len(rows)]))
    for name, output in outputs.items():
        if np.shape(output) != (len(rows),):
            raise ValueError(
                f"The output {name} has the shape {np.shape(output)} for {len(rows)} texts; "
                "expected one value for each text."
            )
    return np.asarray(outputs["text"]).tolist(), np.asarray(outputs["log_prob"]).tolist()


def _check_answer(row, before, after):
    (expected_text, expected_log_prob), (text, log_prob) = before, after
    refusal = f"The translator was not exported: to {row!r} it answers"
    try:
        text.decode()
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{refusal} {text!r}, which is not UTF-8, as a JSON reply has to be."
        ) from error
    if not math.isfinite(log_prob):
        raise ValueError(f"{refusal} with the log_prob {log_prob}, which JSON cannot hold.")
    if text != expected_text or not math.isclose(
        log_prob, expected_log_prob, rel_tol=1e-3, abs_tol=1e-3
    ):
        raise ValueError(
            f"{refusal} {expected_text!r} ({expected_log_prob}), and once saved {text!r} "
            f"({log_prob}); serve has to depend on nothing but its input and variables."
        )


def _load_as_python(version_dir):
    loaded = tf.saved_model.load(version_dir)
    # A signature does not keep its model alive, so this closure does.
    return lambda text: loaded.signatures[SIGNATURE](text=text)


def _load_as_server(version_dir):
    """Import the graph, restore, initialize: the steps of TensorFlow's C++ loader."""
    with open(os.path.join(version_dir, "saved_model.pb"), "rb") as file:
        meta_graph = saved_model_pb2.SavedModel.FromString(file.read()).meta_graphs[0]
    saver, signatures = meta_graph.saver_def, meta_graph.signature_def
    graph = tf.Graph()
    with graph.as_default():
        tf.graph_util.import_graph_def(meta_graph.graph_def, name="")
    session = tf.compat.v1.Session(graph=graph)
    variables = os.path.join(version_dir, "variables", "variables")
    session.run(saver.restore_op_name, {saver.filename_tensor_name: variables})
    session.run(signatures["__saved_model_init_op"].outputs["__saved_model_init_op"].name)
    inputs, outputs = signatures[SIGNATURE].inputs, signatures[SIGNATURE].outputs
    fetches = {name: info.name for name, info in outputs.items()}
    return lambda text: session.run(fetches, {inputs["text"].name: text.numpy()})
