"""What the explorer asks: an exported version, or a run in this process."""

import os
import threading
from typing import TYPE_CHECKING, Any

from keras_transformer.presets import ExportConfig
from keras_transformer.runs.run import Run
from keras_transformer.serving.exported_translator import ExportedTranslator, PersistentServer
from keras_transformer.utils import Path

if TYPE_CHECKING:
    from keras_transformer.translation.translator import Translator


class ExportedModel:
    """An export whose signatures run in another process, `PersistentServer`.

    Args:
        exported: `ExportedTranslator`, which has inspected the version.

    Attributes:
        name: Its directory, as the page shows it.
        signatures: Their names.
    """

    def __init__(self, exported: ExportedTranslator) -> None:
        self.name = os.path.normpath(exported.directory)
        self.signatures = frozenset(exported.signatures)
        self._server = PersistentServer(exported.directory)
        self._lock = threading.Lock()  # `close` waits for the current answer
        self._closed = False

    def ask(self, signature: str, inputs: dict[str, list[Any]]) -> dict[str, Any]:
        """Asks a signature.

        Args:
            signature: Its name.
            inputs: {name of an input: nested lists}.

        Returns:
            {name of an output: nested lists}.

        Raises:
            ValueError: If the version is missing, or cannot answer.
        """
        # Its process may still answer, but a new one could not.
        if not os.path.isfile(os.path.join(self.name, "saved_model.pb")):
            raise ValueError(f"{self.name} is gone: put it back, or explore another model.")
        with self._lock:
            if self._closed:
                raise ValueError("The explorer has been stopped.")
            try:
                (answer,) = self._server.predict_all([(inputs, signature)], len(inputs["text"]))
            except ValueError as error:
                if isinstance(error.__cause__, RuntimeError):  # its process has died
                    died = str(error.__cause__).partition(":")[0]
                    raise ValueError(
                        f"{died}, as the explorer's terminal shows. The next question starts "
                        "another: if that ends as well, export the run anew."
                    ) from error
                raise
        return answer

    def close(self) -> None:
        """Ends the process, after what it is answering."""
        self._closed = True
        with self._lock:
            self._server.close()


class ModelInMemory:
    """A run in this process, which answers as an export of it would.

    Args:
        translator: `Translator`.
        path: Its run directory.

    Attributes:
        name, signatures: See `ExportedModel`.
    """

    def __init__(self, translator: "Translator", path: Path) -> None:
        from keras_transformer.serving.served_translator import ServedTranslator

        self.name = os.path.normpath(path)
        widest = translator.model.target_vocabulary_size
        beam_size = min(ExportConfig.beam_size, widest)
        config = ExportConfig(signatures=("beam", "sample", "explore"), beam_size=beam_size)
        self._served = ServedTranslator(translator, config)
        self.signatures = frozenset(self._served.functions)
        self._lock = threading.Lock()  # the first question of a kind traces a graph

    def ask(self, signature: str, inputs: dict[str, list[Any]]) -> dict[str, Any]:
        """Asks a signature, see `ExportedModel.ask`.

        Raises:
            ValueError: If the run is missing.
        """
        from keras_transformer.serving.served_translator import run_signature

        if not Run(self.name).has_model:
            raise ValueError(f"{self.name} is gone: put it back, or explore another model.")
        with self._lock:
            return run_signature(self._served.functions, signature, inputs)

    def close(self) -> None:
        """Does nothing: the model is freed with this object."""
