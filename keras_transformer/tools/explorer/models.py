"""The models that the explorer can query: an exported version, or a run in this process."""

import dataclasses
import os
import threading
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from keras_transformer.presets import ExportConfig
from keras_transformer.runs.run import Run
from keras_transformer.serving.exported_translator import ExportedTranslator, PersistentServer
from keras_transformer.serving.versions import DEFAULT, PLACEHOLDERS, read_card
from keras_transformer.utils import Path

if TYPE_CHECKING:
    from keras_transformer.translation.translator import Translator

MAX_EXAMPLES = 4  # one that the page translates at first, and three more


class ExportedModel:
    """An export whose signatures run in another process, `PersistentServer`.

    Args:
        exported: `ExportedTranslator`, which has inspected the version.

    Attributes:
        name: The model's name and version, for the page.
        signatures: Their names.
        examples: Source sentences to try.
    """

    def __init__(self, exported: ExportedTranslator) -> None:
        self._path = os.path.abspath(exported.directory)
        base, version = os.path.split(self._path)
        self.name = f"{os.path.basename(base)}, version {version}"
        self.examples = select_examples(_card_examples(self._path))
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
        """
        # The process may still answer, but a new one could not load the model.
        if not os.path.isfile(os.path.join(self._path, "saved_model.pb")):
            raise ValueError(f"{self._path} is missing: restore it, or explore another model.")
        with self._lock:
            if self._closed:
                raise ValueError("The explorer has been stopped.")
            try:
                (answer,) = self._server.predict_all([(inputs, signature)], len(inputs["text"]))
            except ValueError as error:
                if isinstance(error.__cause__, RuntimeError):  # its process has died
                    died = str(error.__cause__).partition(":")[0]
                    raise ValueError(
                        f"{died}; see the explorer's terminal. The next request starts a new "
                        "process: if that ends too, export the run again."
                    ) from error
                raise
        return answer

    def close(self) -> None:
        """Ends the process after its current answer."""
        self._closed = True
        with self._lock:
            self._server.close()


class ModelInMemory:
    """A run in this process, with the signatures of an export.

    Args:
        translator: `Translator`.
        path: Its run directory.

    Attributes:
        name: The run's name, which is that of its directory.
        signatures, examples: See `ExportedModel`.
    """

    def __init__(self, translator: "Translator", path: Path) -> None:
        from keras_transformer.serving.served_translator import ServedTranslator

        self._path = os.path.abspath(path)
        self._run = Run(self._path)
        self.name = os.path.basename(self._path)
        self.examples = select_examples(source for source, _ in self._run.read_examples())
        widest = translator.model.target_vocabulary_size
        names = ("beam", "sample", "explore")
        config = ExportConfig.for_search(translator.default_search, signatures=names)
        config = dataclasses.replace(config, beam_size=min(config.beam_size, widest))
        self._served = ServedTranslator(translator, config)
        self.signatures = frozenset(self._served.functions)
        self._lock = threading.Lock()  # the first question of a kind traces a graph

    def ask(self, signature: str, inputs: dict[str, list[Any]]) -> dict[str, Any]:
        """Asks a signature, see `ExportedModel.ask`."""
        from keras_transformer.serving.served_translator import run_signature

        if not self._run.has_model:
            raise ValueError(f"{self._path} is missing: restore it, or explore another model.")
        with self._lock:
            return run_signature(self._served.functions, signature, inputs)

    def close(self) -> None:
        """Does nothing: the model is freed with this object."""


def select_examples(sources: Iterable[str]) -> list[str]:
    """Returns the first different sentences that are not blank."""
    return list(dict.fromkeys(source for source in sources if source.strip()))[:MAX_EXAMPLES]


def _card_examples(directory):
    """The sources of the model card's example; none if the run that was exported had none."""
    try:
        example = read_card(directory)["signatures"][DEFAULT]["example"]
        sources = example["inputs"]["text"]
    except (ValueError, KeyError):  # without a valid card, the model can still be explored
        return []
    return [] if tuple(sources) == PLACEHOLDERS else [str(source) for source in sources]
