"""The prompts of a dataset, as `prompts` wrote them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from eyas.errors import ArtifactError
from eyas.generate.params import GenerateParams
from eyas.generate.request import ChatRequest, build, fingerprint
from eyas.hashing import digest
from eyas.target.spec import TargetProfile


@dataclass(frozen=True)
class Prompt:
    """One row of data/prompts/X.parquet."""

    sample_id: str
    dataset: str
    prompt_hash: str
    messages: list[dict[str, Any]]


@dataclass(frozen=True)
class PromptTable:
    """All prompts of a dataset, sorted by sample_id."""

    dataset: str
    frame: pl.DataFrame

    @classmethod
    def read(cls, path: Path, dataset: str) -> PromptTable:
        """Read a prompt table.

        Raises:
            ArtifactError: no such file, unreadable, or a column is missing.
        """
        try:
            frame = pl.read_parquet(path, columns=["sample_id", "dataset", "prompt_hash", "messages"])
        except (OSError, pl.exceptions.PolarsError) as error:
            raise ArtifactError(
                f"the prompts can't be read: {error}", where=str(path), hint=f"dvc repro prompts@{dataset}"
            ) from error
        return cls(dataset, frame.sort("sample_id"))

    def __len__(self) -> int:
        return self.frame.height

    def __iter__(self) -> Iterator[Prompt]:
        for row in self.frame.iter_rows(named=True):
            yield Prompt(**row)

    def requests(
        self, profile: TargetProfile, params: GenerateParams
    ) -> Iterator[tuple[Prompt, ChatRequest]]:
        """Every prompt with its request."""
        common = digest(fingerprint(profile, params))
        for prompt in self:
            yield prompt, build(prompt.sample_id, prompt.messages, profile, params, common)
