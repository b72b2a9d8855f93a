"""Copies the tensors of another system into a `Transformer`.

Their positional encodings are all sines, then all cosines; ours take turns. So the axis D of
the residual stream is permuted, wherever it occurs; heads and the inner axis of the feed-forward
networks are not. Layer normalization and the softmax do not depend on the order.
"""

import dataclasses
import functools
import math
from typing import Any

import numpy as np

from keras_transformer.presets import ModelConfig
from keras_transformer.special_ids import SUPPRESSED
from keras_transformer.tools.importers.source_model import SourceModel
from keras_transformer.tools.importers.vocabularies import Rewritten


class TensorReader:
    """Reads tensors of a model once, and knows which were not."""

    def __init__(self, model: SourceModel) -> None:
        self._model = model
        self._unread = set(model.tensors)

    def read(self, name: str, shape: tuple[int, ...]) -> np.ndarray:
        """Reads a tensor as float32; the file may have an axis of size 1 before its shape."""
        stored, path = self._model.tensors.get(name), self._model.weights
        if stored is None:
            raise ValueError(
                f"{path} lacks {name}: it is not complete, or of another architecture."
            )
        if stored.shape not in (shape, (1, *shape)):
            raise ValueError(
                f"{path}: {name} must have the shape {list(shape)} by the configuration and the "
                f"vocabulary, received {list(stored.shape)}: they belong to different models."
            )
        self._unread.discard(name)
        array = np.asarray(stored.read(), np.float32).reshape(shape)
        if not np.isfinite(array).all():
            raise ValueError(f"{path}: {name} has values that are not finite: it is corrupted.")
        return array

    def are_equal(self, name: str, other: str) -> bool:
        """Returns whether two tensors have equal bits."""
        if name == other:
            return True
        tensors = self._model.tensors
        if name not in tensors or other not in tensors:
            return False
        one, two = tensors[name], tensors[other]
        if one.place is not None and one.place == two.place:
            return True
        return one.shape == two.shape and np.array_equal(one.read(), two.read())

    def check_unread(self) -> None:
        """Checks the tensors that were not read: copies of others, or tables of positions."""
        read = [name for name in self._model.tensors if name not in self._unread]
        for name in sorted(self._unread):
            if name in self._model.tables:
                if not _is_sinusoidal(self._model.tensors[name].read()):
                    raise ValueError(
                        f"{self._model.weights}: {name} is not the table of sines and cosines: "
                        "models with learned positions are not supported."
                    )
            elif not any(self.are_equal(name, other) for other in read):
                raise ValueError(
                    f"{self._model.weights} has {name}, which this package's Transformer "
                    "does not have: such models are not supported."
                )


def _is_sinusoidal(table):
    """Whether a table of positions has the sines of all frequencies, then the cosines."""
    if table.ndim != 2:
        return False
    length, d_model = table.shape
    rates = 10000.0 ** (-np.arange(d_model // 2) / (d_model / 2))
    angles = np.arange(length)[:, np.newaxis] * rates
    expected = np.concatenate([np.sin(angles), np.cos(angles)], axis=1)
    tolerance = 1e-5 if table.dtype == np.float32 else 1e-3
    return table.shape == expected.shape and np.allclose(table, expected, 0, tolerance)


def resolve_sharing(model: SourceModel) -> ModelConfig:
    """Returns the architecture with the sharing that the tensors have.

    A configuration that says otherwise is noted: the tensors decide.
    """
    reader = TensorReader(model)
    source, target, output = (find_embedding(model, x) for x in ("source", "target", "output"))
    if model.output_kernel or not reader.are_equal(target, output):
        found = "none"
    elif model.source.pieces == model.target.pieces and reader.are_equal(source, target):
        found = "all"
    else:
        found = "target"
    said = model.config.share_embeddings
    if said != found:
        words = {
            "all": "one matrix for source, target and softmax",
            "target": "the target embedding as softmax",
            "none": "a softmax of its own",
        }
        model.notes.append(
            f"the configuration says {words[said]}, but the tensors are {words[found]}: they "
            "decide."
        )
    return dataclasses.replace(
        model.config, share_embeddings=found, output_bias=bool(model.bias) and found != "none"
    )


def find_embedding(model: SourceModel, name: str) -> str:
    """Returns the name of the tensor of an embedding: `"source"`, `"target"` or `"output"`."""
    names = model.embeddings[name]
    return next((x for x in names if x in model.tensors), names[0])


def load_weights(
    transformer: Any, model: SourceModel, source: Rewritten, target: Rewritten
) -> None:
    """Copies all weights into a built `Transformer`."""
    reader = TensorReader(model)
    order = residual_order(transformer.d_model)
    for name in ("encoder", "decoder"):
        for index, layer in enumerate(getattr(transformer, name).layers):
            _LayerReader(reader, model, name, index, order).copy_layer(layer)
        if norm := getattr(transformer, name).final_norm:
            _LayerReader(reader, model, name, 0, order).copy_norm("final", norm)
    _load_embeddings(transformer, reader, model, (source, target), order)
    reader.check_unread()


def residual_order(d_model: int) -> np.ndarray:
    """Returns the index in their residual stream of each of our D features."""
    return np.arange(d_model).reshape(2, -1).T.flatten()


class _LayerReader:
    """Copies the tensors of one layer."""

    def __init__(
        self, reader: TensorReader, model: SourceModel, stack: str, index: int, order: np.ndarray
    ) -> None:
        self._reader, self._transposed, self._order = reader, model.transposed, order
        self._name_tensor = functools.partial(model.name_tensor, stack, index)

    def copy_layer(self, layer: Any) -> None:
        """Copies the weights of an encoder or decoder layer."""
        parts = [("self", layer.self_attention, layer.self_attention_norm)]
        if layer.cross_attention:
            parts.append(("cross", layer.cross_attention, layer.cross_attention_norm))
        for part, attention, norm in parts:
            for name in ("query", "key", "value", "output"):
                self._copy_projection(part, name, getattr(attention, f"{name}_dense"))
            self.copy_norm(part, norm)
        for name in ("inner", "outer"):
            self._copy_projection("feed_forward", name, getattr(layer.feed_forward, name))
        self.copy_norm("feed_forward", layer.feed_forward_norm)

    def copy_norm(self, part: str, norm: Any) -> None:
        """Copies the weights of a normalization of the residual stream."""
        for weight in ("gamma", "beta"):
            name = self._name_tensor(part, "norm", weight)
            getattr(norm, weight).assign(self._reader.read(name, self._order.shape)[self._order])

    def _copy_projection(self, part, name, dense):
        """Copies a projection of the residual stream to other features, or back."""
        is_back, d_model = name in ("output", "outer"), len(self._order)
        features = math.prod(dense.kernel.shape) // d_model
        shape = (features, d_model) if is_back else (d_model, features)
        kernel_name = self._name_tensor(part, name, "kernel")
        if self._transposed:
            kernel = self._reader.read(kernel_name, shape[::-1]).T
        else:
            kernel = self._reader.read(kernel_name, shape)
        bias = self._reader.read(self._name_tensor(part, name, "bias"), shape[1:])
        if is_back:
            kernel, bias = kernel[:, self._order], bias[self._order]
        else:
            kernel = kernel[self._order]
        dense.kernel.assign(kernel.reshape(dense.kernel.shape))
        dense.bias.assign(bias.reshape(dense.bias.shape))


def _load_embeddings(transformer, reader, model, sides, order):
    d_model = transformer.d_model
    matrices = zip(("target", "source"), reversed(sides), strict=True)
    if transformer.share_embeddings == "all":
        matrices = [("target", sides[1])]
    for side, rewritten in matrices:
        matrix = reader.read(find_embedding(model, side), (getattr(model, side).size, d_model))
        matrix = _take_rows(matrix, rewritten.rows, order)  # frees the first one, as it is large
        getattr(transformer, f"{side}_embedding").embeddings.assign(matrix)
        del matrix
    target, count = sides[1], model.target.size
    bias = np.zeros(count, np.float32)
    if model.bias:
        stored, pieces = model.tensors.get(model.bias), len(model.target.pieces)
        is_filled = not stored or stored.shape[-1:] != (pieces,)  # transformers may leave it
        bias = reader.read(model.bias, (count if is_filled else pieces,))
    bias = _take_rows(bias[:, np.newaxis], target.rows, [0])[:, 0]
    if transformer.output_projection is None:
        if model.bias:
            transformer.target_embedding.output_bias.assign(bias)
    else:
        if model.output_kernel:
            matrix = reader.read(model.output_kernel, (d_model, count)).T
        else:
            matrix = reader.read(find_embedding(model, "output"), (count, d_model))
        kernel = _take_rows(matrix, target.rows, order).T
        transformer.output_projection.kernel.assign(kernel)
        transformer.output_projection.bias.assign(bias)
    transformer.suppressed.assign(np.where(target.suppressed, SUPPRESSED, 0.0))


def _take_rows(matrix, rows, order):
    """Rows by their ids, zeros where the id is -1, and their features in another order."""
    taken = matrix[np.ix_(rows, order)]
    taken[rows < 0] = 0
    return taken
