"""The `datasets` section: named prompt sets, each for training or for evaluation."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

from eyas import paths
from eyas.config import build, read_section
from eyas.errors import ConfigError

SOURCES = ("reasoning_gym", "jsonl", "mt_bench", "human_eval")
ROLES = ("train", "eval")
HISTORIES = ("regenerate", "keep")

_EXAMPLES = {
    "train": "tasks: {source: reasoning_gym, role: train, tasks: [basic_arithmetic], count: 500}",
    "eval": "mt_bench: {source: mt_bench, role: eval}",
}
"""A whole entry of each role."""


@dataclass(frozen=True)
class DatasetParams:
    """One entry of `datasets`; its key is its name in every path and id."""

    source: str
    """reasoning_gym | jsonl | mt_bench | human_eval."""
    role: str
    """train: the drafter learns from it (a share goes to validation); eval: only ever measured on."""
    tasks: list[str] = field(default_factory=list)
    """reasoning_gym: task names."""
    count: int | None = None
    """reasoning_gym: prompts per task; others: at most so many prompts, all if null."""
    seed: int = 0
    """reasoning_gym: seed of the tasks; other seeds give other prompts."""
    path: str | None = None
    """jsonl: file below sources/."""
    column: str | None = None
    """jsonl: the field that holds the prompt (a string) or the conversation (a list of messages)."""
    history: str = "regenerate"
    """What becomes of the assistant turns of a conversation. regenerate: the target writes each of them anew, one after
    another; keep: they stay as they are, and only the last answer is generated."""
    turns: int = 1
    """mt_bench: 1 for the first questions alone, 2 for both turns of each."""

    def __post_init__(self) -> None:
        if self.source not in SOURCES:
            raise ValueError(f"source: {self.source!r} is not one of {', '.join(SOURCES)}")
        if self.role not in ROLES:
            raise ValueError(f"role: {self.role!r} is not one of {', '.join(ROLES)}")
        if self.history not in HISTORIES:
            raise ValueError(f"history: {self.history!r} is not one of {', '.join(HISTORIES)}")
        if self.turns not in (1, 2):
            raise ValueError(f"turns: {self.turns} is neither 1 nor 2")
        if self.turns == 2 and (self.source != "mt_bench" or self.history != "regenerate"):
            raise ValueError("turns: 2 is for a mt_bench dataset with `history: regenerate`")
        if self.count is not None and self.count < 1:
            raise ValueError(f"count: {self.count} is below 1")
        if self.source == "reasoning_gym" and (not self.tasks or self.count is None):
            raise ValueError("a reasoning_gym dataset needs `tasks` and `count` (prompts per task)")
        if self.source == "jsonl" and not self.path:
            raise ValueError("a jsonl dataset needs `path` (a file below sources/)")


def load_datasets(path: Path = paths.PARAMS) -> dict[str, DatasetParams]:
    """All datasets in the order of params.yaml.

    Raises:
        ConfigError: a bad name or entry, or no dataset for training or none for evaluation.
    """
    section = read_section("datasets", path)
    if not isinstance(section, dict):
        raise ConfigError(
            f"`datasets` must be a mapping of names to datasets, not {section!r}", where=str(path)
        )
    datasets: dict[str, DatasetParams] = {}
    for name, values in section.items():
        if not isinstance(name, str) or not re.fullmatch(r"[a-z0-9][a-z0-9_-]*", name):
            raise ConfigError(
                f"`datasets.{name}`: a dataset name is text of a-z, 0-9, _ and -",
                where=str(path),
                hint="put a name of digits alone in quotes" if not isinstance(name, str) else None,
            )
        datasets[name] = build(f"datasets.{name}", DatasetParams, values, path)
    for role, use in (("train", "to learn from"), ("eval", "to measure on")):
        if not any(dataset.role == role for dataset in datasets.values()):
            raise ConfigError(
                f"`datasets` has no entry with role: {role}, nothing {use}",
                where=str(path),
                hint=f"add one, for example `{_EXAMPLES[role]}`, or set `role: {role}` on one that is there",
            )
    return datasets
