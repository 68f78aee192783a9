"""The sequences whose states are extracted."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import polars as pl

from eyas.errors import ArtifactError, InputError

COLUMNS = ("sequence_id", "dataset", "token_ids", "loss_mask")


@dataclass(frozen=True)
class Sequences:
    """Columns of a sequences table, in its order."""

    sequence_ids: list[str]
    datasets: list[str]
    token_ids: list[list[int]]
    loss_masks: list[list[bool]]

    @classmethod
    def read(cls, path: Path, vocab_size: int) -> Sequences:
        """Read a split.

        Raises:
            ArtifactError: the table is missing or lacks a column.
            InputError: a sequence is empty, its mask has another length, or it holds an id that the target lacks.
        """
        try:
            table = pl.read_parquet(path, columns=list(COLUMNS))
        except (FileNotFoundError, pl.exceptions.PolarsError) as error:
            raise ArtifactError(
                f"the sequences can't be read: {error}", where=str(path), hint="dvc repro reassemble"
            ) from error
        tokens, mask = pl.col("token_ids"), pl.col("loss_mask")
        wrong = table.filter(
            (tokens.list.len() == 0)
            | (tokens.list.len() != mask.list.len())
            | (tokens.list.min() < 0)
            | (tokens.list.max() >= vocab_size)
        )
        if len(wrong):
            raise InputError(
                f"{len(wrong)} sequences are empty, have a loss mask of another length, or hold ids outside "
                f"0..{vocab_size - 1}",
                where=f"{path}: {wrong['sequence_id'][0]}",
                hint="the sequences and models/target do not belong together: dvc repro reassemble",
            )
        return cls(*(table[name].to_list() for name in COLUMNS))

    def __len__(self) -> int:
        return len(self.sequence_ids)

    @property
    def lengths(self) -> list[int]:
        """Tokens per sequence."""
        return [len(ids) for ids in self.token_ids]

    @property
    def label_counts(self) -> list[int]:
        """Labelled positions per sequence: generated tokens that follow a generated token."""
        return [sum(this and following for this, following in pairwise(mask)) for mask in self.loss_masks]

    @property
    def checked_counts(self) -> list[int]:
        """Generated tokens per sequence that have a token before them, so that a prediction of them exists."""
        return [sum(mask[1:]) for mask in self.loss_masks]
