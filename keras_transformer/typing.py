"""Names for what annotations say again and again. Loads neither Keras nor TensorFlow.

Neither of them ships types, so a type checker takes a `Tensor` for anything; for readers the names
say more, and docstrings say shapes and dtypes.
"""

import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

# Of whichever backend Keras runs on: eager, symbolic or in a tf.function. What takes one takes a
# NumPy array as well.
Tensor: TypeAlias = Any

# Tuples, lists and dicts of tensors, nested in any way.
Nested: TypeAlias = Any

# What a `Transformer` reads: source and target ids.
Inputs: TypeAlias = tuple[Tensor, Tensor] | list[Tensor]

# What a decoder remembers of the positions before: nested tensors, batch first.
State: TypeAlias = Any

# The size of each axis, None where it is not known yet.
Shape: TypeAlias = tuple[int | None, ...]

# A search's tokens, their numbers and their log-probabilities, a row for each one searched for.
SearchOutputs: TypeAlias = tuple[Tensor, Tensor, Tensor]

# The next position: from ids, their position and a state to logits and the next state.
Step: TypeAlias = Callable[[Tensor, int | Tensor, State], tuple[Tensor, State]]

# What `get_config` returns, and `from_config` takes.
Config: TypeAlias = dict[str, Any]

# What keras.activations.get, keras.initializers.get and so on take.
Activation: TypeAlias = str | Config | Callable[[Tensor], Tensor] | None
Initializer: TypeAlias = str | Config | Callable[..., Tensor]
Regularizer: TypeAlias = str | Config | Callable[[Tensor], Tensor] | None
Constraint: TypeAlias = str | Config | Callable[[Tensor], Tensor] | None

# The name of a file or directory.
Path: TypeAlias = str | os.PathLike[str]

# Sentences. Byte strings may hold anything; what is no UTF-8 is replaced.
Texts: TypeAlias = Iterable[str | bytes]

# (source, target) strings; what else there is in a `Pair` is passed over.
Pairs: TypeAlias = Sequence[tuple[str, ...]]
