"""The sequence files: written in pieces, read again and checked as they lie there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import polars as pl

from eyas import paths
from eyas.errors import GateError
from eyas.reassemble.checks import PROBLEMS, find_differences, find_problems, refuse
from eyas.reassemble.inputs import pieces
from eyas.reassemble.report import kind_counts, total_counts
from eyas.reassemble.sequences import chosen, index
from eyas.reassemble.split import hashed, with_split
from eyas.schema import Sequences, check, columns_of
from eyas.tables import ROW_GROUP
from eyas.target.spec import TargetProfile


def index_of(
    sequences: Mapping[str, pl.LazyFrame],
    roles: Mapping[str, str],
    val_share: float,
    question_hash: Callable[[str], str],
) -> pl.DataFrame:
    """The index of all datasets, in order, with `split`: where each sequence goes, null if it is not used.

    `question_hash`: of a conversation's first question, the prompt hash of a conversation that asks nothing else.

    Raises:
        GateError: two sequences have the same id.
    """
    begins = pl.coalesce(hashed(pl.col("opening"), question_hash), "prompt_hash")
    parts = [
        index(rows, split_hash=begins).with_columns(role=pl.lit(roles[name]))
        for name, rows in sequences.items()
    ]
    found = pl.concat(parts)
    _refuse_repeated(found)
    return with_split(found, val_share)


def write_splits(directory: Path, sequences: Mapping[str, pl.LazyFrame], found: pl.DataFrame) -> None:
    """Write the three files, each in the order of the index `found`."""
    for split in paths.SPLITS:
        parts = [pl.LazyFrame(schema=columns_of(Sequences))]
        for name, rows in sequences.items():
            used = found.filter(dataset=name).select(pl.col("split").eq_missing(pl.lit(split))).to_series()
            if used.any():
                parts.append(chosen(rows, used))
        pl.concat(parts).sink_parquet(
            directory / paths.sequences(split).name,
            compression_level=1,
            row_group_size=ROW_GROUP,
            engine="streaming",
        )


def check_files(directory: Path, found: pl.DataFrame, profile: TargetProfile) -> pl.DataFrame:
    """Read the files again and judge every sequence; nothing may be missing, foreign or changed.

    Returns the tokens of each kind (report.KIND_COUNTS).

    Raises:
        GateError: naming the problems.
        ArtifactError: a file breaks its schema.
    """
    problems, counts = [pl.DataFrame(schema=PROBLEMS)], []
    for split in paths.SPLITS:
        path = directory / paths.sequences(split).name
        expected = found.filter(pl.col("split") == split)
        written = pl.scan_parquet(path)
        _refuse_other_rows(
            split, written.select("sequence_id").collect()["sequence_id"], expected["sequence_id"]
        )
        read = 0
        for piece in pieces(written):
            check(Sequences, piece, str(path))
            answers = expected[read : read + piece.height]  # those of the piece: the order is the same
            problems += [find_problems(piece, profile), find_differences(piece, answers)]
            counts.append(kind_counts(piece))
            read += piece.height
    refuse(pl.concat(problems), found.filter(pl.col("split").is_not_null()).height)
    return total_counts(counts)


def _refuse_other_rows(split: str, written: pl.Series, expected: pl.Series) -> None:
    if not written.equals(expected):
        different = written.to_frame().join(expected.to_frame(), on="sequence_id", how="anti")["sequence_id"]
        raise GateError(
            f"{split} holds {len(written)} sequences, its answers make {len(expected)}, or in another order",
            where=str(different[0]) if len(different) else None,
            hint="a bug in eyas: report it",
        )


def _refuse_repeated(found: pl.DataFrame) -> None:
    twice = found.filter(pl.col("sequence_id").is_duplicated())["sequence_id"]
    if len(twice):
        raise GateError(
            f"{twice.n_unique()} sequences are there more than once, for example {twice[0]}",
            hint="a sample_id must not look like another one with `#turn` behind it; rename it in the source",
        )
