"""Every path of the pipeline, relative to the repository root (the working directory of all stages)."""

from __future__ import annotations

import os
from pathlib import Path

PARAMS = Path("params.yaml")
SOURCES = Path("sources")

TARGET = Path("models/target")
TARGET_PROFILE = Path("models/profile.json")
VOCAB = Path("models/vocab")
DRAFTER = Path("models/drafter")
EXPORT = Path("models/export")

PROMPTS = Path("data/prompts")
RESPONSES = Path("data/responses")
VALIDATED = Path("data/validated")
QUARANTINE = Path("data/quarantine")
SEQUENCES = Path("data/sequences")
HIDDEN = Path("data/hidden")

REPORTS = Path("reports")
EXTRACTION_REPORT = REPORTS / "extraction.json"
REASSEMBLY_REPORT = REPORTS / "reassembly.json"
REASSEMBLY_PLOTS = REPORTS / "reassembly"

PAGE = REPORTS / "report.html"
"""The page of the run."""
CARDS = REPORTS / "cards"
"""Model cards of the exported folders, with the numbers that are known only after them."""
OVERVIEW = REPORTS / "overview"
"""Tables for `dvc plots` that several stages have part in."""

STATUS = "status.json"
"""In a journal folder: how far its run is."""

SPLITS = ("train", "val", "eval")


def prompts(dataset: str) -> Path:
    return PROMPTS / f"{dataset}.parquet"


def rejected_prompts(dataset: str) -> Path:
    return PROMPTS / "rejected" / f"{dataset}.parquet"


def responses(dataset: str) -> Path:
    return RESPONSES / dataset


def raw_responses(dataset: str) -> Path:
    return responses(dataset) / "raw_responses.jsonl"


def server_profile(dataset: str) -> Path:
    return responses(dataset) / "server_profile.json"


def validated(dataset: str) -> Path:
    return VALIDATED / f"{dataset}.parquet"


def quarantine(dataset: str) -> Path:
    return QUARANTINE / f"{dataset}.parquet"


def validation_report(dataset: str) -> Path:
    return REPORTS / "validation" / f"{dataset}.json"


def sequences(split: str) -> Path:
    return SEQUENCES / f"{split}.parquet"


def hidden(split: str) -> Path:
    return HIDDEN / split


def export(engine: str) -> Path:
    return EXPORT / engine


def root() -> Path:
    """The real repository root.

    `dvc exp run --temp` runs stages in a copy, but DVC_ROOT still points to the real repository, so that
    experiments share one journal.
    """
    return Path(os.environ.get("DVC_ROOT") or ".").resolve()


def journal(stage: str) -> Path:
    """Where a long stage keeps its work outside the DVC outs, which DVC deletes before each run."""
    return root() / "data" / ".journal" / stage


def logs() -> Path:
    """Where the logs of started servers are kept."""
    return root() / "data" / ".journal" / "logs"
