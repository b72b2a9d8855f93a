"""One function for all kinds of search.

Shapes: B batch, N hypotheses for each row, P tokens of the prefix, T number of steps taken.
"""

from typing import Any

import tensorflow as tf

from keras_transformer.decoding.beam import beam_search
from keras_transformer.decoding.sampling import sample
from keras_transformer.presets import SearchConfig, resolve_search
from keras_transformer.utils import SearchOutputs, State, Step, Tensor


def search(
    step: Step,
    state: State,
    batch_size: int | Tensor,
    max_length: int | Tensor,
    config: SearchConfig | None = None,
    prefix: Tensor | None = None,
    seeds: Tensor | None = None,
    fixed_shapes: bool = False,
    **options: Any,
) -> SearchOutputs:
    """Searches with the options of a `SearchConfig`.

    Args:
        step, state, batch_size, max_length, prefix, fixed_shapes: See `beam_search`.
        config: `SearchConfig`; greedy search by default.
        seeds: Integers `(B,)`, one for each row, used for sampling instead of `config.seed`.
        **options: Fields of `SearchConfig`, such as `beam_size=5`, instead of `config`.

    Returns:
        `tokens`, int32 `(B, N, T)`, `lengths`, int32 `(B, N)`, and `log_prob`, float32 `(B, N)`,
        see `beam_search`, with N = `config.beam_size`.

    Raises:
        ValueError: If the beam is wider than the vocabulary; see also `greedy_search`.

    Example:

    >>> source = tokenizer(["samedi 9 mai 1998"], end=True).to_tensor()
    >>> step, state = model.make_step(), model.initial_state(source)
    >>> tokens, lengths, log_prob = search(step, state, len(source), 64, beam_size=5)
    >>> tokenizer.detokenize(tokens[:, 0]).numpy().tolist()
    [b'1998-05-09']

    Compiled by XLA, once for each shape of `source`:

    >>> @tf.function(jit_compile=True)
    ... def translate(source):
    ...     state = model.initial_state(source, length=64)
    ...     step = model.make_step("xla")
    ...     return search(step, state, len(source), 64, beam_size=5, fixed_shapes=True)
    """
    config = resolve_search(config, options)
    arguments = step, state, batch_size, max_length
    if not config.sample:
        return beam_search(
            *arguments,
            beam_size=config.beam_size,
            length_penalty=config.length_penalty,
            prefix=prefix,
            fixed_shapes=fixed_shapes,
            beam_patience=config.beam_patience,
            length_norm=config.length_norm,
        )
    seed = config.seed if seeds is None else seeds
    sampling = config.temperature, config.top_k, config.top_p, seed
    outputs = sample(*arguments, *sampling, prefix, fixed_shapes)
    return tuple(tf.expand_dims(tensor, 1) for tensor in outputs)
