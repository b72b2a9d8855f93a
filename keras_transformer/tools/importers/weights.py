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
    """Reads tensors of a model, and knows which were not read."""

    def __init__(self, model: SourceModel) -> None:
        self._model, self._read = model, set[str]()

    def read(self, name: str, shape: tuple[int, ...]) -> np.ndarray:
        """Reads a tensor as float32; the file may have an axis of size 1 before its shape."""
        array, path = self._model.tensors.get(name), self._model.weights
        if array is None:
            raise ValueError(
                f"{path} lacks {name}: it is not complete, or of another architecture."
            )
        if array.shape not in (shape, (1, *shape)):
            raise ValueError(
                f"{path}: {name} must have the shape {list(shape)} by the configuration and the "
                f"vocabulary, received {list(array.shape)}: they belong to different models."
            )
        self._read.add(name)
        array = np.asarray(array, np.float32).reshape(shape)
        if not np.isfinite(array).all():
            raise ValueError(f"{path}: {name} has values that are not finite: it is corrupted.")
        return array

    def check_unread(self) -> None:
        """Checks that the tensors that were not read are copies of others."""
        for name in sorted(self._model.tensors.keys() - self._read):
            if not any(_are_equal(self._model, name, other) for other in self._read):
                raise ValueError(
                    f"{self._model.weights} has {name}, which this package's Transformer "
                    "does not have: such models are not supported."
                )


def _are_equal(model, *names):
    one, other = (model.tensors.get(name) for name in names)
    return one is not None and (one is other or np.array_equal(one, other))


def find_embedding(model: SourceModel, name: str) -> str:
    """Returns the name of the tensor of an embedding: `"source"`, `"target"` or `"output"`."""
    names = model.embeddings[name]
    return next((x for x in names if x in model.tensors), names[0])


def resolve_sharing(model: SourceModel) -> ModelConfig:
    """Returns the architecture with the sharing that the tensors have."""
    source, target, output = (find_embedding(model, x) for x in ("source", "target", "output"))
    if not _are_equal(model, target, output):
        shared = "none"
    elif model.source.pieces == model.target.pieces and _are_equal(model, source, target):
        shared = "all"
    else:
        shared = "target"
    has_bias = shared != "none" and model.bias in model.tensors
    return dataclasses.replace(model.config, share_embeddings=shared, output_bias=has_bias)


def load_weights(
    transformer: Any, model: SourceModel, source: Rewritten, target: Rewritten
) -> None:
    """Copies all weights into a built `Transformer`."""
    reader = TensorReader(model)
    # The index in their residual stream of each of our D features.
    order = np.arange(transformer.d_model).reshape(2, -1).T.flatten()
    for name in ("encoder", "decoder"):
        stack = getattr(transformer, name)
        for index, layer in enumerate(stack.layers):
            _LayerReader(reader, model, name, index, order).copy_layer(layer)
        if stack.final_norm:
            _LayerReader(reader, model, name, 0, order).copy_norm("final", stack.final_norm)
    _load_embeddings(transformer, reader, model, source, target, order)
    reader.check_unread()


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
        stored_shape = shape[::-1] if self._transposed else shape
        kernel = self._reader.read(self._name_tensor(part, name, "kernel"), stored_shape)
        kernel = kernel.T if self._transposed else kernel
        bias = self._reader.read(self._name_tensor(part, name, "bias"), shape[1:])
        if is_back:
            kernel, bias = kernel[:, self._order], bias[self._order]
        else:
            kernel = kernel[self._order]
        dense.kernel.assign(kernel.reshape(dense.kernel.shape))
        dense.bias.assign(bias.reshape(dense.bias.shape))


def _load_embeddings(transformer, reader, model, source, target, order):
    def read(name, vocabulary, rows):
        matrix = reader.read(find_embedding(model, name), (vocabulary.size, len(order)))
        return _take_rows(matrix, rows, order)

    _assign(transformer.target_embedding.embeddings, read("target", model.target, target.rows))
    if transformer.share_embeddings != "all":
        _assign(transformer.source_embedding.embeddings, read("source", model.source, source.rows))
    bias = np.zeros(len(target.rows), np.float32)
    if model.bias in model.tensors:
        # transformers may leave it without the rows that fill up the matrices.
        stored, size = model.tensors[model.bias], len(model.target.pieces)
        size = size if stored.shape[-1:] == (size,) else model.target.size
        bias = _take_rows(reader.read(model.bias, (size,))[:, np.newaxis], target.rows, [0])[:, 0]
    if transformer.output_projection is not None:
        kernel = read("output", model.target, target.rows).T
        transformer.output_projection.kernel.assign(kernel)
        transformer.output_projection.bias.assign(bias)
    elif transformer.output_bias:
        transformer.target_embedding.output_bias.assign(bias)
    transformer.suppressed.assign(np.where(target.suppressed, SUPPRESSED, 0.0))


def _assign(variable, array):
    """Assigns an array that may be large."""
    from keras_transformer.training.keras_workarounds import shared_zeros

    tensor, zeros = shared_zeros(array.shape)
    zeros[...] = array
    variable.assign(tensor)


def _take_rows(matrix, rows, order):
    """Rows by their ids, zeros where the id is -1, and their features in another order."""
    taken = matrix[np.ix_(rows, order)]
    taken[rows < 0] = 0
    return taken
