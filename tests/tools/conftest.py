"""What the tests of pictures share."""

import matplotlib.pyplot as plt
import pytest


@pytest.fixture
def no_window():
    """pyplot, which opens windows, knows nothing of our figures."""
    yield
    assert plt.get_fignums() == []
