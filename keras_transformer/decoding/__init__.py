"""Search for the best token sequence: functions of a step function and a state.

They use no layers, text or tokenizers. A state is a nested structure of tensors, batch first; a
tensor that grows with every step has size 0 along that axis at first. A state that does not grow
has room for t positions: if it is a dict, its entry `past_positions` holds their numbers, `(B, t)`,
and no search may take more steps.

Example:

>>> step, state = model.make_step(), model.initial_state(source)
>>> tokens, lengths, log_prob = beam_search(step, state, len(source), 64, beam_size=5)
>>> tokenizer.detokenize(tokens[:, 0]).numpy().tolist()
[b'1998-05-09']
"""

from keras_transformer.decoding.beam import beam_search, search
from keras_transformer.decoding.sampling import greedy_search, sample

__all__ = ["beam_search", "greedy_search", "sample", "search"]
