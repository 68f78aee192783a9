"""The sequences whose states are extracted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt
import polars as pl

from eyas.errors import ArtifactError, InputError
from eyas.ragged import Ragged
from eyas.source import source_digest
from eyas.tokenkinds import NAMES, PROMPT

COLUMNS = ("sequence_id", "dataset", "token_ids", "kinds", "weight")
Counts = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Sequences:
    """Columns of a sequences table, in its order. Tokens lie flat: a Python list of a billion ints takes 36 GB."""

    sequence_ids: Sequence[str]
    datasets: Sequence[str]
    tokens: Ragged
    """int32"""
    kinds: Ragged
    """uint8, see eyas.tokenkinds."""
    weights: npt.NDArray[np.float32]
    """[N] how much each sequence counts in training."""

    @classmethod
    def of(
        cls,
        sequence_ids: Sequence[str],
        datasets: Sequence[str],
        token_ids: Sequence[Sequence[int]],
        kinds: Sequence[Sequence[int]],
        weights: Sequence[float] | None = None,
    ) -> Sequences:
        """Sequences from lists; every weight is 1.0 without `weights`."""
        return cls(
            sequence_ids=list(sequence_ids),
            datasets=list(datasets),
            tokens=Ragged.of(token_ids, np.int32),
            kinds=Ragged.of(kinds, np.uint8),
            weights=np.asarray([1.0] * len(sequence_ids) if weights is None else weights, dtype=np.float32),
        )

    @classmethod
    def read(cls, path: Path, vocab_size: int) -> Sequences:
        """Read a split.

        Raises:
            ArtifactError: the table is missing or lacks a column.
            InputError: a sequence is empty, its kinds have another length or are unknown, or it holds an id that the
                target lacks.
        """
        try:
            table = pl.read_parquet(path, columns=list(COLUMNS))
        except (OSError, pl.exceptions.PolarsError) as error:
            raise ArtifactError(
                f"the sequences can't be read: {error}", where=str(path), hint="dvc repro reassemble"
            ) from error
        _check(table, vocab_size, path)
        return cls(
            sequence_ids=table["sequence_id"].to_list(),
            datasets=table["dataset"].cast(pl.Categorical).to_list(),
            tokens=Ragged.of_column(table["token_ids"], np.int32),
            kinds=Ragged.of_column(table["kinds"], np.uint8),
            weights=table["weight"].cast(pl.Float32).to_numpy(),
        )

    def __len__(self) -> int:
        return len(self.sequence_ids)

    def ids(self, index: int) -> list[int]:
        """Token ids of a sequence."""
        ids: list[int] = self.tokens[index].tolist()
        return ids

    @cached_property
    def lengths(self) -> Counts:
        """[N] tokens per sequence."""
        return self.tokens.lengths

    @cached_property
    def label_counts(self) -> Counts:
        """[N] labelled positions per sequence: generated tokens that follow a generated token."""
        generated = self.kinds.values != PROMPT
        return self.kinds.sums(generated & np.roll(generated, 1) & ~self.kinds.first)

    @cached_property
    def checked_counts(self) -> Counts:
        """[N] generated tokens per sequence that have a token before them, so that a prediction of them exists."""
        return self.kinds.sums((self.kinds.values != PROMPT) & ~self.kinds.first)

    @cached_property
    def source_digest(self) -> str:
        """Identifies these sequences, their weights and their order (eyas.source)."""
        return source_digest(self.sequence_ids, self.tokens, self.kinds, self.weights)

    def per_dataset(self, values: Sequence[int] | Counts | None = None) -> dict[str, int]:
        """Sum of one value per sequence over each dataset; without values, the number of sequences."""
        total: Counter[str] = Counter()
        for dataset, value in zip(self.datasets, [1] * len(self) if values is None else values, strict=True):
            total[dataset] += int(value)
        return dict(total)


def _check(table: pl.DataFrame, vocab_size: int, path: Path) -> None:
    tokens, kinds = pl.col("token_ids"), pl.col("kinds")
    wrong = table.filter(
        (tokens.list.len() == 0)
        | (tokens.list.len() != kinds.list.len())
        | (tokens.list.min() < 0)
        | (tokens.list.max() >= vocab_size)
        | (kinds.list.max() >= len(NAMES))
    )
    if len(wrong):
        raise InputError(
            f"{len(wrong)} sequences are empty, have not one known kind for each token, or hold ids outside "
            f"0..{vocab_size - 1}",
            where=f"{path}: {wrong['sequence_id'][0]}",
            hint="the sequences and models/target do not belong together: dvc repro reassemble",
        )
