"""Run in a process of its own: loads models that another one has saved, and runs them.

`python reload.py DIRECTORY`, with any Keras backend. For every `<name>.inputs.npz` it loads
`<name>.keras` and, with TensorFlow, the same model once more from `<name>.json` and
`<name>.weights.h5`; another backend writes it anew as `<name>.<backend>.keras`. Custom objects are
not named anywhere. Outputs go to `<name>.<backend>.npz`; the backend is printed, and whether
TensorFlow was loaded.
"""

import pathlib
import sys

import keras
import numpy as np

import keras_transformer  # noqa: F401, registers the classes that the files name


def unpack(arrays):
    """Input arrays as a model takes them: a dict, or the pair that Transformer takes."""
    return (arrays["source"], arrays["target"]) if "source" in arrays else arrays


def flat(outputs):
    return [keras.ops.convert_to_numpy(x) for x in keras.tree.flatten(outputs)]


def rebuild(directory, name):
    """A model from its `.json` and `.weights.h5`."""
    model = keras.models.model_from_json((directory / f"{name}.json").read_text())
    if not model.built:
        model.build()
    model.load_weights(directory / f"{name}.weights.h5")
    return model


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


def refuses_class_weight(model, inputs):
    """Whether `fit` says what to pass instead."""
    try:
        model.fit(inputs, inputs[1], class_weight={4: 2.0}, verbose=0)
    except ValueError as error:
        return [np.array("pass sample_weight" in str(error))]
    return [np.array(False)]


def main(directory):
    backend, models = keras.backend.backend(), {}
    for path in sorted(directory.glob("*.inputs.npz")):
        name = path.name.removesuffix(".inputs.npz")
        inputs = unpack(dict(np.load(path)))
        model = models[name] = keras.saving.load_model(directory / f"{name}.keras")
        answers = {"keras": flat(model(inputs))}
        if backend == "tensorflow":
            answers["weights"] = flat(rebuild(directory, name)(inputs))
        if isinstance(inputs, tuple):
            answers["steps"] = step_by_step(model, *inputs)
            if model.compiled:
                answers["refused"] = refuses_class_weight(model, inputs)
                answers["training"] = train(model, inputs)
        named = {f"{how} {i}": x for how, xs in answers.items() for i, x in enumerate(xs)}
        np.savez(directory / f"{name}.{backend}.npz", **named)
    print(backend, *({"tensorflow"} & set(sys.modules)))
    # Not before: to write files, Keras loads TensorFlow, whatever its backend is.
    for name, model in models.items():
        if backend != "tensorflow":
            model.save(directory / f"{name}.{backend}.keras")


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
