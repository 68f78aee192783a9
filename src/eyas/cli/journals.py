"""The journals of generation on disk, looked at without their lock: nothing here writes."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eyas import filelock, paths
from eyas.errors import ArtifactError, InputError
from eyas.filelock import Holder
from eyas.target.spec import TargetProfile, ThinkFormat


@dataclass(frozen=True)
class JournalDirectory:
    """One journal: a dataset's rows under one fingerprint."""

    dataset: str
    path: Path

    @property
    def fingerprint(self) -> str:
        return self.path.name

    @property
    def rows(self) -> Path:
        return self.path / "rows.jsonl"

    @property
    def changed_at(self) -> float:
        """When a row or the summary was last written, in Unix seconds."""
        times = [
            file.stat().st_mtime
            for name in ("rows.jsonl", "summary.json")
            if (file := self.path / name).exists()
        ]
        return max(times, default=self.path.stat().st_mtime)

    def holder(self) -> Holder | None:
        return filelock.holder(self.path / "lock")

    def common(self) -> dict[str, Any] | None:
        """What all entries have in common; None if the directory does not say."""
        try:
            fingerprint = json.loads((self.path / "fingerprint.json").read_bytes())
        except (FileNotFoundError, ValueError):
            return None
        return fingerprint if isinstance(fingerprint, dict) else None


def find_journals(dataset: str | None = None) -> list[JournalDirectory]:
    """All journals, or those of one dataset: by dataset, the newest fingerprint first."""
    root = paths.journal("generate")
    names = sorted(path.name for path in root.iterdir() if path.is_dir()) if root.is_dir() else []
    return [journal for name in names if dataset in (None, name) for journal in _fingerprints(root / name)]


def newest_journal(dataset: str) -> JournalDirectory | None:
    """The journal of a dataset that was written to last."""
    return next(iter(find_journals(dataset)), None)


def no_journal(dataset: str | None) -> InputError:
    """The error that there is nothing to look at; says which datasets there are."""
    known = sorted({journal.dataset for journal in find_journals()})
    if dataset is None or not known:
        return InputError(
            "no dataset has been generated here yet",
            where=str(paths.journal("generate")),
            hint="run from the repository root; `dvc repro` fills the journals",
        )
    return InputError(
        f"dataset {dataset!r} has no journal",
        where=str(paths.journal("generate")),
        hint=f"datasets with a journal: {', '.join(known)}",
    )


def think_format() -> ThinkFormat | None:
    """How the target of this repository marks its thinking; None if it does not, or is not known here."""
    try:
        return TargetProfile.read(paths.root() / paths.TARGET_PROFILE).think
    except ArtifactError:
        return None


def _fingerprints(directory: Path) -> list[JournalDirectory]:
    journals = [JournalDirectory(directory.name, path) for path in directory.iterdir() if path.is_dir()]
    return sorted(journals, key=lambda journal: (-journal.changed_at, journal.fingerprint))
