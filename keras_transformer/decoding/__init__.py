"""Search for the best token sequence: functions of a step function and a state.

No layer, no text and no tokenizer in here. A state is a nested structure of tensors, batch first;
a state tensor that grows from step to step starts with size 0 along the axis in which it grows. One
that does not has room for so many positions: if the state is a dict, it says so by `positions`, the
numbers of these positions, `(B, t)`, and no search may take more steps.

Example:

>>> step, state = model.make_step(), model.initial_state(source)
>>> tokens, lengths, log_prob = beam_search(step, state, len(source), 64, beam_size=5)
>>> tokenizer.detokenize(tokens[:, 0]).numpy().tolist()
[b'1998-05-09']
"""

from keras_transformer.decoding.beam import beam_search
from keras_transformer.decoding.greedy import greedy_search
from keras_transformer.decoding.sampling import sample
from keras_transformer.decoding.search import search

__all__ = ["beam_search", "greedy_search", "sample", "search"]
