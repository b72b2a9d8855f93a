"""Makes Keras find the classes of saved models by their names, whichever package comes first.

Keras knows a class once the module that defines it has been imported. With Keras loaded, that costs
nothing; else it waits until somebody imports Keras, for `import keras_transformer` loads neither
Keras nor a backend.
"""

import importlib
import sys
import warnings
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # importing it takes longer than this package
    from importlib.abc import Loader
    from importlib.machinery import ModuleSpec
    from types import ModuleType
else:
    Loader = object

# What registers all classes that a `.keras` file may name.
MODULES = (
    "layers",
    "transformer",
    "training.losses",
    "training.optimizer",
)

# Their names: what a file may name before any of them has been imported.
CLASSES = """
AlibiPositions BucketedPositions Decoder DecoderLayer Dense DisentangledPositions DistanceTable
Dropout EinsumDense Encoder EncoderLayer FeedForward LayerNormalization MaskedAccuracy MeanAdam
MultiHeadAttention Perplexity PositionalEmbedding RelativePositions RotaryPositions
SmoothedCrossEntropy TargetTokens Transformer WarmupInverseSqrt
""".split()


def register() -> None:
    """Registers the classes: now where Keras is loaded, else as soon as it is."""
    if sys.modules.get("keras"):
        _import_modules()
    elif _WAITING not in sys.meta_path:
        sys.meta_path.insert(0, _WAITING)


def _import_modules():
    for module in MODULES:
        importlib.import_module(f"keras_transformer.{module}")


class _Waiting:
    """Finder that looks on while Keras and this package's modules are imported.

    The classes are registered when Keras is there and none of those imports is under way any more:
    a module of ours that imports Keras is half done until it ends, and so is one that another
    thread imports. Then the finder finds nothing any more; it stays in `sys.meta_path`, for whoever
    takes one out makes other threads, which go through that list, miss the next.
    """

    def __init__(self) -> None:
        self.under_way: list[str] = []  # appending and removing are atomic
        self.keras_is_there = False
        self.done = False

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> "ModuleSpec | None":
        if self.done or not (name == "keras" or name.startswith("keras_transformer.")):
            return None
        others = sys.meta_path[sys.meta_path.index(self) + 1 :]
        specs = (finder.find_spec(name, path, target) for finder in others)
        spec = next((spec for spec in specs if spec), None)
        if spec and hasattr(spec.loader, "exec_module"):
            spec.loader = _Watched(spec.loader, self)
        return spec

    def ended(self, name: str) -> None:
        """Takes note that an import has ended, well or not; registers after the last one."""
        self.under_way.remove(name)
        if self.done or self.under_way or not self.keras_is_there:
            return
        self.done = True
        try:
            _import_modules()
        except Exception as error:  # `import keras` is not to fail for us; our use will say why
            self.done = False  # the next import tries again
            warnings.warn(
                f"keras_transformer could not register its classes with Keras, so that saved "
                f"models will not find them: {type(error).__name__}: {error}",
                stacklevel=2,
            )


class _Watched(Loader):
    """Another loader, which tells `_Waiting` when a module is being executed."""

    def __init__(self, loader: Any, waiting: _Waiting) -> None:
        self.loader = loader
        self.waiting = waiting

    def __getattr__(self, name: str) -> Any:
        return getattr(self.loader, name)

    def create_module(self, spec: "ModuleSpec") -> "ModuleType | None":
        return self.loader.create_module(spec)

    def exec_module(self, module: "ModuleType") -> None:
        module.__loader__ = self.loader
        if module.__spec__:
            module.__spec__.loader = self.loader
        name = module.__name__
        self.waiting.under_way.append(name)
        try:
            self.loader.exec_module(module)
            self.waiting.keras_is_there |= name == "keras"
        finally:
            self.waiting.ended(name)


_WAITING = _Waiting()
