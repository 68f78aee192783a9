"""Journal folders whose work is published, and which are removed when the output is safe.

A stage's output is safe once DVC has taken it into its cache, which it does after the stage has ended. A later stage that
reads the output runs only then, so it is the one to remove the folder.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from eyas import filelock, paths

PUBLISHED = "published.json"
"""In a folder whose work is published."""


def is_published(folder: Path) -> bool:
    """Whether the work in a journal folder is published."""
    return (folder / PUBLISHED).exists()


def forget_published(stage: str) -> None:
    """Remove the journal folders of an earlier stage whose work is published; of those in use, none.

    Does nothing outside of `dvc repro`, which alone runs a stage only after it has cached the output of the one before.
    """
    root = paths.journal(stage)
    if "DVC_STAGE" not in os.environ or not root.is_dir():
        return
    for folder in root.iterdir():
        holder = filelock.holder(folder / "lock")
        if is_published(folder) and not (holder is not None and holder.holds):
            shutil.rmtree(folder, ignore_errors=True)
