"""Run in a process of its own, with JAX as Keras' backend: `python on_jax.py DIRECTORY`.

For every `<name>.inputs.npz` it loads `<name>.keras`, which another process has saved with
TensorFlow, without naming custom objects; outputs go to `<name>.outputs.npz`, and the model is
saved anew as `<name>.jax.keras`. Then it tries what runs on JAX, and what says that it cannot.
"""

import pathlib
import sys

import keras
import numpy as np

import keras_transformer as kt


def unpack(arrays):
    """Input arrays as a model takes them: a dict, or the pair that Transformer takes."""
    return (arrays["source"], arrays["target"]) if "source" in arrays else arrays


def flat(outputs):
    return [keras.ops.convert_to_numpy(x) for x in keras.tree.flatten(outputs)]


def step_by_step(model, source, target):
    """Logits of one token after the other."""
    state, logits = model.initial_state(source), []
    for position in range(target.shape[1]):
        step_logits, state = model.step(target[:, position], position, state)
        logits.append(step_logits)
    return flat(keras.ops.stack(logits, axis=1))


def train(model, inputs):
    """One epoch more of what the model is compiled for: loss, accuracy, and all weights after."""
    source, target = inputs
    labels = np.concatenate([target[:, 1:], np.zeros_like(target[:, :1])], axis=1)
    history = model.fit((source, target), labels, batch_size=len(labels), verbose=0).history
    return [np.array(history["loss"]), np.array(history["accuracy"]), *model.get_weights()]


def refused(call, message):
    try:
        call()
    except ValueError as error:
        assert message in str(error), error
    else:
        raise AssertionError(message)


def load_all(directory):
    models = {}
    for path in sorted(directory.glob("*.inputs.npz")):
        name = path.name.removesuffix(".inputs.npz")
        inputs = unpack(dict(np.load(path)))
        model = models[name] = keras.saving.load_model(directory / f"{name}.keras")
        answers = {"call": flat(model(inputs))}
        if isinstance(inputs, tuple):
            answers["steps"] = step_by_step(model, *inputs)
            if model.compiled:
                answers["training"] = train(model, inputs)
        named = {f"{how} {i}": x for how, xs in answers.items() for i, x in enumerate(xs)}
        np.savez(directory / f"{name}.outputs.npz", **named)
    assert "tensorflow" not in sys.modules
    # Not before: to write files, Keras loads TensorFlow, whatever its backend is.
    for name, model in models.items():
        model.save(directory / f"{name}.jax.keras")


def try_a_model():
    # Beside TensorFlow: from text to batches, and a search, which finds what the model ranks first.
    tokenizer = kt.SubwordTokenizer.train(["abAB"], model_type="char")
    pairs = [("ab", "AB"), ("b", "B"), ("abb", "ABB")]
    data = kt.make_dataset(pairs, tokenizer, tokenizer, tokens_per_batch=64, max_length=8)
    ((source, _), _) = next(data.as_numpy_iterator())
    size = tokenizer.vocabulary_size
    model = kt.Transformer(size, size, num_layers=1, d_model=4, num_heads=1, d_ff=4, dropout=0.0)
    rows = len(source)
    tokens = np.array(kt.greedy_search(model.step, model.initial_state(source), rows, 2)[0])
    prefix = np.concatenate([np.full((rows, 1), kt.START), tokens[:, :-1]], axis=1)
    live = tokens != kt.PAD
    best = np.array(model((source, prefix))).argmax(-1)
    assert live.any() and (best == tokens)[live].all(), tokens

    # Labels: wrong ones are refused, or NaN in a compiled step.
    model.compile("sgd", kt.SmoothedCrossEntropy(), metrics=[kt.MaskedAccuracy()])
    x, y = (np.full((2, 3), 5), np.full((2, 3), 5)), np.array([[size, 3, 0], [3, 0, -100]])
    refused(lambda: model.loss(y, np.zeros((2, 3, size))), f"received the label {size}")
    import tensorflow as tf

    assert np.isnan(model.evaluate(tf.data.Dataset.from_tensors((x, y)), verbose=0)).all()

    # TensorFlow's alone.
    refused(lambda: model.fit(x, y, class_weight={4: 2.0}, verbose=0), "pass sample_weight")
    refused(lambda: model.compile("sgd", "sparse_categorical_crossentropy"), "returns logits")
    not_on_jax = "needs Keras' TensorFlow backend, this is jax"
    refused(lambda: kt.Translator(model, tokenizer, tokenizer), f"Translator {not_on_jax}")
    refused(lambda: kt.make_strategy("auto"), f"make_strategy {not_on_jax}")
    refused(lambda: model.compile("sgd", "mse", clip_norm=1.0), "needs Keras' TensorFlow backend")
    # Last, since Keras takes the weights of a model away where a step on JAX raises.
    refused(lambda: model.evaluate(x, y[:, :1], verbose=0), "received shape (2, 1)")


if __name__ == "__main__":
    load_all(pathlib.Path(sys.argv[1]))
    try_a_model()
    print(keras.backend.backend())
