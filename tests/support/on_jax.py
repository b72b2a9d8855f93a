"""What test_jax.py has saved computes here with JAX, in a process of its own."""

import pathlib
import sys

import keras
import numpy as np
import pytest

import keras_transformer as kt

NOT_ON_JAX = "needs Keras' TensorFlow backend, this is jax"


def compute(model, source, target):
    """Logits, at once and one token after the other; and an epoch more of training."""
    state, steps = model.initial_state(source), []
    for position in range(target.shape[1]):
        logits, state = model.step(target[:, position], position, state)
        steps.append(logits)
    found = {"call": model((source, target)), "steps": keras.ops.stack(steps, axis=1)}
    found = {name: keras.ops.convert_to_numpy(x) for name, x in found.items()}
    labels = np.concatenate([target[:, 1:], np.zeros_like(target[:, :1])], axis=1)
    model.jit_compile = keras.backend.backend() == "jax"  # where it takes less time
    history = model.fit((source, target), labels, batch_size=len(labels), verbose=0).history
    weights = {f"weight {i}": x for i, x in enumerate(model.get_weights())}
    return found | {name: history[name][0] for name in ("loss", "accuracy")} | weights


def try_what_cannot_be(model):
    x, y = (np.full((2, 3), 5), np.full((2, 3), 5)), np.array([[99, 3, 0], [3, 0, -100]])
    tokenizer = kt.SubwordTokenizer.train(["abAB"], model_type="char")
    data = kt.make_dataset([("ab", "AB")], tokenizer, tokenizer, 64)
    data = data.map(lambda ids, labels: ((ids[0] % 9, ids[1] % 9), labels + 99))
    model.compile("sgd", kt.SmoothedCrossEntropy())
    assert np.isnan(model.evaluate(data, verbose=0)).all()  # a compiled step cannot raise
    for mistake, message in (
        (lambda: model.loss(y, np.zeros((2, 3, 9))), "received the label 99"),
        (lambda: model.fit(x, y, class_weight={4: 2.0}, verbose=0), "pass sample_weight"),
        (lambda: model.compile("sgd", "sparse_categorical_crossentropy"), "returns logits"),
        (lambda: kt.Translator(model, None, None), f"Translator {NOT_ON_JAX}"),
        (lambda: kt.make_strategy("auto"), f"make_strategy {NOT_ON_JAX}"),
        (lambda: model.compile("sgd", "mse", clip_norm=1.0), "needs Keras' TensorFlow backend"),
        # Last, since Keras takes the weights of a model away where a step on JAX raises.
        (lambda: model.evaluate(x, y[:, :1], verbose=0), r"received shape \(2, 1\)"),
    ):
        with pytest.raises(ValueError, match=message):
            mistake()


def main(directory):
    inputs = np.load(directory / "inputs.npz")
    paths = directory / "classifier.keras", directory / "model.keras"
    classifier, model = map(keras.saving.load_model, paths)
    found = compute(model, **inputs)
    found["classes"] = keras.ops.convert_to_numpy(classifier(inputs["source"]))
    np.savez(directory / "computed.npz", **found)
    assert "tensorflow" not in sys.modules
    # Not before: to write files, Keras loads TensorFlow, whatever its backend is.
    model.save(directory / "trained on jax.keras")
    tokens, _, _ = kt.greedy_search(model.make_step(), model.initial_state(inputs["source"]), 3, 4)
    logits = np.array(model((inputs["source"], np.full((3, 1), kt.START))))
    np.testing.assert_array_equal(tokens[:, 0], logits[:, 0].argmax(axis=-1))
    try_what_cannot_be(model)


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
    print(keras.backend.backend())
