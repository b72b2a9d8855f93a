"""The history of a training as its run directory holds it: a row for each validation."""

import csv
import os
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from keras_transformer.atomic_files import replacing
from keras_transformer.runs.files import HISTORY, is_run
from keras_transformer.typing import Path

# What every history tells, and what only those of trainings that translated at validations.
COLUMNS = ("step", "target_tokens", "minutes", "learning_rate", "loss", "val_loss")
SCORES = ("val_bleu", "val_chrf")

# As `read_history` returns it.
History: TypeAlias = Sequence[Mapping[str, float | None]]


def read_history(path: Path) -> list[dict[str, float | None]]:
    """Reads the `history.csv` of a run directory.

    Args:
        path: A run directory.

    Returns:
        List of dicts, one for each validation: `step` (updates), `target_tokens` and `minutes`,
        all since the start of the training; `learning_rate`; `loss` and `val_loss` in nats per
        token; and, where the file has them, `val_bleu` and `val_chrf` (0–100). Floats, or None
        where a cell is empty. Other columns are left out.

    Raises:
        ValueError: If there is no history, it is empty, a column is missing, or a cell is no
            number.
    """
    name = os.path.join(path, HISTORY)
    try:
        with open(name, encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError, csv.Error):
        if is_run(path) and not os.path.exists(name):
            raise ValueError(
                f"{path} has no {HISTORY}, for a mean of checkpoints was not trained itself: name "
                "the run that it was averaged from."
            ) from None
        raise ValueError(
            f"{path} has no {HISTORY} to read: give the --output of a training that has validated."
        ) from None
    if not rows:
        raise ValueError(f"{name} holds no validation yet: wait for the first one.")
    missing = [column for column in COLUMNS if column not in rows[0]]
    if missing:
        raise ValueError(
            f"{name} has no column {', '.join(missing)}: its first line should name "
            f"{', '.join(COLUMNS)}."
        )
    columns = [column for column in COLUMNS + SCORES if column in rows[0]]
    try:
        return [{name: float(row[name]) if row[name] else None for name in columns} for row in rows]
    except ValueError as error:
        raise ValueError(f"{name} is damaged: {error}.") from None


def write_history(path: Path, rows: History) -> None:
    """Writes the `history.csv` of a run directory, whole or not at all.

    Args:
        path: A run directory.
        rows: List of dicts as `read_history` returns them; what is missing becomes an empty cell.
    """
    with replacing(os.path.join(path, HISTORY)) as name:
        with open(name, "w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS + SCORES)
            writer.writeheader()
            writer.writerows(rows)
