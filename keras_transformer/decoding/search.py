"""One function for all kinds of search.

Shapes: B batch, N hypotheses for each row, P tokens of the prefix, T number of steps taken.
"""

import tensorflow as tf

from keras_transformer.decoding.beam import beam_search
from keras_transformer.decoding.sampling import sample
from keras_transformer.presets import SearchConfig
from keras_transformer.utils import SearchOutputs, State, Step, Tensor


def search(
    step: Step,
    state: State,
    batch_size: int | Tensor,
    max_length: int | Tensor,
    config: SearchConfig,
    prefix: Tensor | None = None,
    seeds: Tensor | None = None,
    fixed_shapes: bool = False,
) -> SearchOutputs:
    """Searches with the options of a `SearchConfig`.

    Args:
        step, state, batch_size, max_length, prefix, fixed_shapes: See `beam_search`.
        config: `SearchConfig`.
        seeds: Integers `(B,)`, one for each row, used for sampling instead of `config.seed`.

    Returns:
        `tokens`, int32 `(B, N, T)`, `lengths`, int32 `(B, N)`, and `log_prob`, float32 `(B, N)`,
        see `beam_search`, with N = `config.beam_size`.

    Raises:
        ValueError: If the beam is wider than the vocabulary; see also `greedy_search`.

    Example:

    >>> source = tokenizer(["samedi 9 mai 1998"], end=True).to_tensor()
    >>> step, state = model.make_step(), model.initial_state(source)
    >>> config = SearchConfig(beam_size=5, length_penalty=0.6)
    >>> tokens, lengths, log_prob = search(step, state, len(source), 64, config)
    >>> tokenizer.detokenize(tokens[:, 0]).numpy().tolist()
    [b'1998-05-09']

    Compiled by XLA, once for each shape of `source`:

    >>> @tf.function(jit_compile=True)
    ... def translate(source):
    ...     state = model.initial_state(source, length=64)
    ...     return search(model.make_step("xla"), state, len(source), 64, config, fixed_shapes=True)
    """
    arguments = step, state, batch_size, max_length
    if not config.sample:
        return beam_search(
            *arguments,
            beam_size=config.beam_size,
            length_penalty=config.length_penalty,
            prefix=prefix,
            fixed_shapes=fixed_shapes,
            beam_patience=config.beam_patience,
        )
    outputs = sample(
        *arguments,
        temperature=config.temperature,
        top_k=config.top_k,
        top_p=config.top_p,
        seed=config.seed if seeds is None else seeds,
        prefix=prefix,
        fixed_shapes=fixed_shapes,
    )
    return tuple(tf.expand_dims(tensor, 1) for tensor in outputs)
