"""Run in a process of its own: loads models that another one has saved, and runs them.

`python reload.py DIRECTORY`, with any Keras backend. For every `<name>.npz` of inputs it loads
`<name>.keras` and, from `<name>.json` and `<name>.weights.h5`, the same model once more; custom
objects are not named anywhere. Outputs go to `<name>.<backend>.npz`; the backend is printed, and
whether TensorFlow was loaded.
"""

import pathlib
import sys

import keras
import numpy as np

# What a file names must have been imported; Keras finds it then.
from keras_transformer import (  # noqa: F401
    MaskedAccuracy,
    SmoothedCrossEntropy,
    Transformer,
    WarmupInverseSqrt,
)


def unpack(arrays):
    """Input arrays as a model takes them: a dict, or the pair that Transformer takes."""
    return (arrays["source"], arrays["target"]) if "source" in arrays else arrays


def flat(outputs):
    return [keras.ops.convert_to_numpy(x) for x in keras.tree.flatten(outputs)]


def run_both(directory, name, inputs):
    """Outputs of the model from `.keras`, and of the one from `.json` and `.weights.h5`."""
    whole = keras.saving.load_model(directory / f"{name}.keras")
    rebuilt = keras.models.model_from_json((directory / f"{name}.json").read_text())
    if not rebuilt.built:
        rebuilt.build()
    rebuilt.load_weights(directory / f"{name}.weights.h5")
    return {"keras": flat(whole(inputs)), "weights": flat(rebuilt(inputs))}


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


def main(directory):
    backend = keras.backend.backend()
    for path in sorted(directory.glob("*.inputs.npz")):
        name = path.name.removesuffix(".inputs.npz")
        inputs = unpack(dict(np.load(path)))
        answers = run_both(directory, name, inputs)
        if isinstance(inputs, tuple):
            model = keras.saving.load_model(directory / f"{name}.keras")
            answers["steps"] = step_by_step(model, *inputs)
            if model.compiled:
                answers["training"] = train(model, inputs)
        named = {f"{how} {i}": x for how, xs in answers.items() for i, x in enumerate(xs)}
        np.savez(directory / f"{name}.{backend}.npz", **named)
    print(backend, *({"tensorflow"} & set(sys.modules)))


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
