"""tensorflow-text, imported where TF_USE_LEGACY_KERAS=1 asks for a Keras that is not installed.

It subclasses layers of `tf.keras`, which this package does not use. Without tf_keras that import
would fail; `tf.keras` is then Keras 3.
"""

import importlib.util
import os

_LEGACY = "TF_USE_LEGACY_KERAS"
_asked = None if importlib.util.find_spec("tf_keras") else os.environ.pop(_LEGACY, None)
try:
    import tensorflow_text
    from tensorflow_text.python.ops import sentencepiece_tokenizer
    from tensorflow_text.tools.wordpiece_vocab import (
        wordpiece_tokenizer_learner_lib as wordpiece_learner,
    )
finally:
    if _asked is not None:
        os.environ[_LEGACY] = _asked

__all__ = ["sentencepiece_tokenizer", "tensorflow_text", "wordpiece_learner"]
