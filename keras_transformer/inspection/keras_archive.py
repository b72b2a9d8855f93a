"""A `.keras` file: a zip archive of a configuration and an HDF5 file of weights, nothing else."""

import zipfile
import zlib
from typing import IO

from keras_transformer.typing import Path

CONFIG, METADATA, WEIGHTS = "config.json", "metadata.json", "model.weights.h5"
MOST_BYTES = {CONFIG: 1 << 20, METADATA: 1 << 16}  # what is written has one kilobyte


def open_archive(path: Path) -> zipfile.ZipFile:
    """Opens a `.keras` file, having looked at what is in it.

    Raises:
        ValueError: If it is damaged, holds other members than Keras writes, or these are
            compressed or too large: what is stored as it is takes no more than the file has.
    """
    try:
        archive = zipfile.ZipFile(path)
        names = sorted(info.filename for info in archive.infolist())
        if names != sorted([CONFIG, METADATA, WEIGHTS]):
            raise ValueError(
                f"{path} holds {', '.join(map(repr, names[:6]))}, expected {CONFIG}, {METADATA} "
                f"and {WEIGHTS}: it is no model that this package has saved."
            )
        for info in archive.infolist():
            if info.compress_type != zipfile.ZIP_STORED or info.file_size != info.compress_size:
                raise ValueError(
                    f"{path}: {info.filename} is compressed, which Keras does not do: save the "
                    "model anew."
                )
            if info.file_size > MOST_BYTES.get(info.filename, info.file_size):
                raise ValueError(
                    f"{path}: {info.filename} has {info.file_size:,} bytes, at most "
                    f"{MOST_BYTES[info.filename]:,} are read."
                )
            with archive.open(info):  # the header before it says the same
                pass
        return archive
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        raise ValueError(damaged(path, error)) from None
    except OSError as error:
        raise ValueError(f"{path} cannot be read ({error.strerror}): check the path.") from None


def read_config(archive: zipfile.ZipFile) -> str:
    """Reads the configuration of an archive that `open_archive` has opened."""
    try:
        return archive.read(CONFIG).decode()
    except (zipfile.BadZipFile, UnicodeDecodeError, EOFError, OSError) as error:
        raise ValueError(damaged(archive.filename, error)) from None


def open_weights(archive: zipfile.ZipFile) -> IO[bytes]:
    """Opens the weights of an archive that `open_archive` has opened."""
    return archive.open(WEIGHTS)


def damaged(path: Path | None, error: object) -> str:
    """A sentence on a file that cannot be read, and why."""
    reason = " ".join(str(error).split()).rstrip(".")[:200] or type(error).__name__
    return f"{path} is damaged ({reason}): copy it anew from where it was written."
