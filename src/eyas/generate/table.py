"""The prompts of a dataset, as `prompts` wrote them, read in slices: a million of them never fill the memory."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from eyas.errors import ArtifactError
from eyas.turns import Message, turn_count

SLICE_ROWS = 4096
"""Rows in memory at a time."""

_COLUMNS = ("sample_id", "dataset", "prompt_hash", "messages", "tools")


@dataclass(frozen=True, slots=True)
class Prompt:
    """One row of data/prompts/X.parquet: a conversation whose answers are to be generated."""

    row: int
    """Its place in the table, from 0."""
    sample_id: str
    dataset: str
    prompt_hash: str
    messages: list[Message]
    """Keys that are null are left out."""
    tools: str | None
    """JSON text of the list of tools."""

    def parsed_tools(self) -> list[dict[str, Any]] | None:
        """The tools in OpenAI's form."""
        return None if self.tools is None else json.loads(self.tools)


@dataclass(frozen=True)
class PromptTable:
    """All prompts of a dataset, sorted by sample_id."""

    dataset: str
    path: Path
    rows: int
    """Conversations."""
    turns: int
    """Answers to generate for all of them."""

    @classmethod
    def read(cls, path: Path, dataset: str) -> PromptTable:
        """Look through a prompt table once.

        Raises:
            ArtifactError: no such file, unreadable, a column is missing, or the rows are not sorted by sample_id.
        """
        rows = turns = 0
        last = ""
        for frame in _slices(path, dataset, ("sample_id", "messages")):
            ids = frame["sample_id"]
            if ids.null_count() or not (
                ids[0] > last and bool((ids.slice(1) > ids.slice(0, len(ids) - 1)).all())
            ):
                raise _unusable(path, dataset, "its rows are not sorted by sample_id, each once")
            last = ids[-1]
            rows += frame.height
            turns += int(frame.select(turn_count().sum()).item())
        return cls(dataset, path, rows, turns)

    def __len__(self) -> int:
        return self.rows

    def __iter__(self) -> Iterator[Prompt]:
        for number, frame in enumerate(_slices(self.path, self.dataset, _COLUMNS)):
            yield from _prompts(frame, number * SLICE_ROWS)

    def prompt(self, row: int) -> Prompt:
        """One prompt."""
        return next(_prompts(_slice(self.path, self.dataset, _COLUMNS, row, 1), row))

    def only(self, wanted: npt.NDArray[np.bool_]) -> Iterator[Prompt]:
        """The prompts of these rows, in order; slices without any are not read.

        `wanted` (rows) is looked at slice by slice as the iteration goes on.
        """
        for start in range(0, self.rows, SLICE_ROWS):
            places = np.flatnonzero(wanted[start : start + SLICE_ROWS])
            if len(places):
                first, last = int(places[0]), int(places[-1])
                frame = _slice(self.path, self.dataset, _COLUMNS, start + first, last - first + 1)
                for prompt in _prompts(frame, start + first):
                    if wanted[prompt.row]:
                        yield prompt


def _prompts(frame: pl.DataFrame, start: int) -> Iterator[Prompt]:
    for row, values in enumerate(frame.iter_rows(named=True), start):
        messages = [
            {name: value for name, value in message.items() if value is not None}
            for message in values.pop("messages")
        ]
        yield Prompt(row=row, messages=messages, **values)


def _slices(path: Path, dataset: str, columns: tuple[str, ...]) -> Iterator[pl.DataFrame]:
    start = 0
    while (frame := _slice(path, dataset, columns, start, SLICE_ROWS)).height:
        yield frame
        start += SLICE_ROWS


def _slice(path: Path, dataset: str, columns: tuple[str, ...], start: int, rows: int) -> pl.DataFrame:
    try:
        return pl.scan_parquet(path).select(columns).slice(start, rows).collect()
    except (OSError, pl.exceptions.PolarsError) as error:
        raise _unusable(path, dataset, str(error)) from error


def _unusable(path: Path, dataset: str, why: str) -> ArtifactError:
    return ArtifactError(
        f"the prompts can't be read: {why}", where=str(path), hint=f"dvc repro prompts@{dataset}"
    )
