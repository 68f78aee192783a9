"""How far an extraction is, from the status files in its journal: for `eyas status`."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eyas import filelock, paths
from eyas.filelock import Holder
from eyas.generate.view import age, clock, percent

QUIET_S = 120.0
"""A running extraction writes its status between batches; one that has not for so long hangs, or a batch is very long."""


@dataclass(frozen=True)
class ExtractionStatus:
    """One journal of an extraction."""

    fingerprint: str
    state: str
    """running | finished | stopped | killed."""
    values: dict[str, Any]
    """Of its status file."""

    @classmethod
    def of(cls, folder: Path) -> ExtractionStatus | None:
        """The status of a journal folder; None if no run has left one there."""
        try:
            values: dict[str, Any] = json.loads((folder / paths.STATUS).read_bytes())
            holder = filelock.holder(folder / "lock")
            return cls(folder.name, _state(values["state"], holder), values)
        except (FileNotFoundError, KeyError, ValueError):
            return None

    def __str__(self) -> str:
        tokens, size = self.values["tokens"], self.values["bytes"]
        done = tokens["computed"] + tokens["resumed"]
        since = time.time() - self.values["updated"]
        text = f"extract {self.state}: {done:,}/{tokens['total']:,} tokens"
        text += f" ({percent(done / tokens['total'])})" if tokens["total"] else ""
        text += f", {size['written'] / 1e9:,.2f}/{size['total'] / 1e9:,.2f} GB"
        if self.state == "running":
            speed, eta = self.values["tokens_per_s"], self.values["eta_s"]
            text += "" if speed is None else f", {speed:,.0f} tokens/s"
            text += "" if eta is None else f", ETA {clock(eta)}"
            return text + (f"; no sign of life for {age(since)}" if since > QUIET_S else "")
        text += f", {age(since)} ago"
        return text + ("; `dvc repro` goes on from the finished shards" if self.state != "finished" else "")


def find_extraction() -> ExtractionStatus | None:
    """The extraction that was written to last; None if there is none in the journal."""
    root = paths.journal("extract")
    found = [ExtractionStatus.of(folder) for folder in root.iterdir()] if root.is_dir() else []
    return max(filter(None, found), key=lambda status: float(status.values["updated"]), default=None)


def _state(said: str, holder: Holder | None) -> str:
    """What the run said last; a run that said "running" and holds no lock was killed."""
    return "killed" if said == "running" and holder is not None and not holder.holds else said
