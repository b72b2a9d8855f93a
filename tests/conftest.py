"""What several files of tests share."""

import gc
import os
import sys

import hypothesis
import pytest
from tensorflow.python.framework import ops

from keras_transformer.train import train
from tests.support.child_process import restore_signals
from tests.support.made_once import made_once
from tests.support.reversed_text import config_of

# The same examples each time, in CI; `HYPOTHESIS_PROFILE=ordeal`: new and many.
common = dict(deadline=None, database=None, suppress_health_check=list(hypothesis.HealthCheck))
hypothesis.settings.register_profile("ci", derandomize=True, max_examples=20, **common)
hypothesis.settings.register_profile("ordeal", max_examples=500, **common)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


def pytest_configure(config):
    """Warnings of packages below are errors only with the Python that we develop with."""
    if sys.version_info[:2] != (3, 11):
        filters = config.getini("filterwarnings")
        assert filters[0] == "error"
        filters[:1] = ["default", "error:::keras_transformer", "error:::tests"]


def pytest_collection_modifyitems(items):
    """Longer limits for tests that are known to take long; for others, see setup.cfg."""
    limits = {"slow": 900, "docker": 900, "ordeal": 3600}  # seconds
    for item in items:
        for mark in filter(item.get_closest_marker, limits):
            item.add_marker(pytest.mark.timeout(limits[mark]))


@pytest.fixture(scope="session", autouse=True)
def signals():
    """Processes of tests can be interrupted, also if this one runs in the background."""
    restore_signals()


@pytest.fixture(scope="session", autouse=True)
def cores_together():
    """Whichever test comes first in this process, TensorFlow has its usual threads."""
    import tensorflow as tf

    tf.config.list_logical_devices()


@pytest.fixture(scope="module", autouse=True)
def memory(request):
    """What a file of tests has made is given back, or the process would grow to several gigabytes.

    What is left stays for as long as the process: Keras and Python would walk it all each time that
    they look for garbage. It is known once the file before has ended, whose last test held it.
    """
    gc.collect()
    gc.freeze()
    yield
    for value in vars(request.module).values():
        if hasattr(value, "cache_clear") and value.__module__ == request.module.__name__:
            value.cache_clear()
    # TensorFlow registers a function for each call of a `tf.custom_gradient`; it keeps the graph.
    gradients = ops.gradient_registry._registry
    for name in [name for name in gradients if name.startswith("CustomGradient-")]:
        del gradients[name]


@pytest.fixture
def seen(monkeypatch):
    """The configurations of trainings that are checked; nothing is trained."""
    seen = []
    checked = "keras_transformer.runs.training_data.check_training"
    monkeypatch.setattr(checked, lambda config, *_: seen.append(config))
    monkeypatch.setattr("keras_transformer.train.train_run", lambda *_: None)
    return seen


@pytest.fixture
def untried(monkeypatch):
    """What is exported is not tried as a server, as the test does so itself: it takes long."""
    monkeypatch.setattr("keras_transformer.serving.saved_model.check", lambda *_: [])


@pytest.fixture(scope="session")
def trained_config(tmp_path_factory):
    """The training of `trained_run`: three epochs on words in reverse order."""
    return config_of(made_once(tmp_path_factory, "corpus", config_of), epochs=3)


@pytest.fixture(scope="session")
def trained_run(trained_config, tmp_path_factory):
    """A run directory of `train`, the same for all tests: copy it before you change it."""
    return made_once(tmp_path_factory, "run", lambda folder: train(trained_config, folder))
