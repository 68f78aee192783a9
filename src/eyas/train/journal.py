"""Where a training run keeps its state outside the DVC outs: `data/.journal/train/<fingerprint>/`.

`fingerprint.json` says what the folder belongs to, `state.safetensors` is the last saved state, `best-N.safetensors` the
weights of the best validation, after N steps, `live/` holds the curves. The process that trains holds `lock`.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import load_file
from torch import Tensor

from eyas import filelock
from eyas.errors import JournalInUse
from eyas.files import write_json
from eyas.hashing import digest
from eyas.published import PUBLISHED, is_published
from eyas.train.record import Record, Validation
from eyas.train.state import SavedState, Trained, read_state, write_state, write_tensors

logger = logging.getLogger("eyas.train")

STATE = "state.safetensors"


class TrainJournal:
    """The folder of one fingerprint: everything that decides the result. Other params have another folder."""

    def __init__(self, root: Path, identity: Mapping[str, Any]) -> None:
        self.directory = root / digest(dict(identity))[:32]
        self.identity = identity
        self._lock: int | None = None

    @property
    def live(self) -> Path:
        """Folder of the curves."""
        return self.directory / "live"

    def open(self) -> None:
        """Lock the folder for this process and remove what a kill left half-written.

        Raises:
            JournalInUse: another process trains with the same params and data.
        """
        self.directory.mkdir(parents=True, exist_ok=True)
        try:
            self._lock = filelock.take(self.directory / "lock")
        except JournalInUse:
            raise
        except OSError as error:  # a shared file system without locks
            logger.warning("%s can't be locked (%s): start no second training", self.directory, error)
        (self.directory / PUBLISHED).unlink(missing_ok=True)
        for left in self.directory.glob("*.tmp"):
            left.unlink()
        write_json(self.directory / "fingerprint.json", dict(self.identity))
        states = self.directory.parent.glob(f"*/{STATE}")
        if others := [path for path in states if path != self._state and not is_published(path.parent)]:
            logger.info(
                "%d unfinished trainings with other params or data keep their state in %s; remove what is not wanted",
                len(others), self.directory.parent,
            )  # fmt: skip

    def read(self) -> SavedState | None:
        """The saved state, if there is one.

        Raises:
            ArtifactError: it is damaged.
        """
        return read_state(self._state)

    def save(self, trained: Trained, record: Record) -> None:
        """Replace the saved state; then remove best weights that it does not name."""
        write_state(self._state, trained, record)
        kept = self._best(record.best)
        for path in self.directory.glob("best-*.safetensors"):
            if path != kept:
                path.unlink()

    def save_best(self, validation: Validation, weights: Mapping[str, Tensor]) -> None:
        """Keep the weights of a validation; those of earlier ones stay until the next state is saved."""
        path = self._best(validation)
        assert path is not None
        write_tensors(path, weights)

    def read_best(self, validation: Validation) -> dict[str, Tensor]:
        """The weights kept for a validation."""
        path = self._best(validation)
        assert path is not None
        return load_file(path)

    def close(self) -> None:
        """Give up the lock."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def finish(self) -> None:
        """Mark the folder: its result is published, and a later stage removes it when DVC has the result."""
        write_json(self.directory / PUBLISHED, {})
        self.close()

    @property
    def _state(self) -> Path:
        return self.directory / STATE

    def _best(self, validation: Validation | None) -> Path | None:
        return None if validation is None else self.directory / f"best-{validation.step}.safetensors"
