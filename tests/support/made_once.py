"""What is expensive is made once for all processes of a session."""

import os

from filelock import FileLock


def made_once(tmp_path_factory, name, make):
    """Returns a directory, which `make` fills unless another process has: leave it as it is."""
    root = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        root = root.parent  # of all workers
    folder = root / "once" / name
    folder.parent.mkdir(exist_ok=True)
    with FileLock(f"{folder}.lock"):
        if not folder.exists():
            partial = folder.with_name(f"{name}.partial")
            partial.mkdir(exist_ok=True)
            make(partial)
            partial.rename(folder)
    return folder
