"""What the explorer asks: an exported version, or a run in this process."""

import os
import threading
from typing import Any

from keras_transformer.presets import ExportConfig
from keras_transformer.runs.files import is_run
from keras_transformer.serving.exported_translator import ExportedTranslator
from keras_transformer.serving.lasting_server import LastingServer
from keras_transformer.serving.model_card import answer
from keras_transformer.serving.served_translator import ServedTranslator
from keras_transformer.translation.translator import Translator
from keras_transformer.typing import Path


class ExportedModel:
    """Asks the signatures of an export, in the process that `LastingServer` keeps for it.

    Args:
        exported: `ExportedTranslator`, which has looked at the version.

    Attributes:
        name: What the page calls it.
        signatures: Names of what it can be asked.
    """

    def __init__(self, exported: ExportedTranslator) -> None:
        self.name = os.path.normpath(exported.directory)
        self.signatures = frozenset(exported.signatures)
        self._server = LastingServer(exported.directory)
        self._lock = threading.Lock()  # who closes it waits for what is being answered
        self._closed = False

    def ask(self, signature: str, inputs: dict[str, list[Any]]) -> dict[str, Any]:
        """Asks a signature.

        Args:
            signature: Its name.
            inputs: {name of an input: nested lists}.

        Returns:
            {name of an output: nested lists}.

        Raises:
            ValueError: If the version is there no more, or cannot answer.
        """
        # Its process might go on, but what it answers could not be had again.
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
        if not is_run(self.name):
            raise ValueError(f"{self.name} is gone: put it back, or explore another model.")
        with self._lock:
            return answer(self._served.functions, signature, inputs).outputs

    def close(self) -> None:
        """Nothing: the model goes with this object."""
