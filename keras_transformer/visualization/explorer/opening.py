"""Opens a run or an export for the explorer."""

import socket

from keras_transformer.runs.models import open_model
from keras_transformer.serving.exported_translator import ExportedTranslator
from keras_transformer.typing import Path
from keras_transformer.visualization.explorer.explorer_server import ExplorerServer
from keras_transformer.visualization.explorer.exported_model import ExportedModel
from keras_transformer.visualization.explorer.questions import Model


def open_explorer(path: Path, listening: socket.socket) -> ExplorerServer:
    """Makes the page of a model.

    Args:
        path: A run directory, or a SavedModel: its version directory, or the one above.
        listening: What `listen` returned.

    Returns:
        `ExplorerServer`, which `run` starts.

    Raises:
        ValueError: If there is no model, or it is not fit to be loaded.
    """
    opened = open_model(path)
    if isinstance(opened, ExportedTranslator):
        model: Model = ExportedModel(opened)
    else:
        from keras_transformer.visualization.explorer.model_in_memory import ModelInMemory

        model = ModelInMemory(opened, path)
    return ExplorerServer(model, listening)
