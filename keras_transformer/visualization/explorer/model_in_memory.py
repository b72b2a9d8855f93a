"""A run whose model the explorer asks in this process."""

import os
import threading
from typing import Any

from keras_transformer.presets import ExportConfig
from keras_transformer.runs.run import Run
from keras_transformer.serving.served_translator import ServedTranslator, run_signature
from keras_transformer.translation.translator import Translator
from keras_transformer.typing import Path


class ModelInMemory:
    """Asks a translator what an export of it would be asked, and gets the same answers.

    Args:
        translator: `Translator`.
        path: The run directory that it is from.

    Attributes:
        name, signatures: As `ExportedModel` has them.
    """

    def __init__(self, translator: Translator, path: Path) -> None:
        self.name = os.path.normpath(path)
        widest = translator.model.target_vocabulary_size
        beam_size = min(ExportConfig.beam_size, widest)
        config = ExportConfig(signatures=("beam", "sample", "explore"), beam_size=beam_size)
        self._served = ServedTranslator(translator, config)
        self.signatures = frozenset(self._served.functions)
        self._lock = threading.Lock()  # the first question of a kind makes a graph

    def ask(self, signature: str, inputs: dict[str, list[Any]]) -> dict[str, Any]:
        """Asks a signature, as `ExportedModel.ask` does.

        Raises:
            ValueError: If the run is there no more.
        """
        if not Run(self.name).has_model:
            raise ValueError(f"{self.name} is gone: put it back, or explore another model.")
        with self._lock:
            return run_signature(self._served.functions, signature, inputs)

    def close(self) -> None:
        """Nothing: the model goes with this object."""
