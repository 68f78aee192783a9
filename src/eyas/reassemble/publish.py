"""The sequence files: written in pieces, read again and checked as they lie there."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import polars as pl

from eyas import paths
from eyas.errors import GateError
from eyas.reassemble.checks import PROBLEMS, find_differences, find_problems, refuse
from eyas.reassemble.inputs import pieces
from eyas.reassemble.report import kind_counts, total_counts
from eyas.reassemble.sequences import chosen, in_val, index, smallest_bucket
from eyas.schema import Sequences, check
from eyas.tables import ROW_GROUP
from eyas.target.spec import TargetProfile


def index_of(
    sequences: Mapping[str, pl.LazyFrame], roles: Mapping[str, str], val_share: float
) -> pl.DataFrame:
    """The index of all datasets, in order, with `split`: where each sequence goes, null if it is not used.

    Raises:
        GateError: two sequences have the same id.
    """
    parts = [index(rows).with_columns(role=pl.lit(roles[name])) for name, rows in sequences.items()]
    found = pl.concat(parts)
    _refuse_duplicates(found)
    held_out = in_val(val_share, smallest_bucket(found.filter(pl.col("role") == "train")))
    side = pl.when(pl.col("role") == "eval").then(pl.lit("eval")).when(held_out).then(pl.lit("val"))
    split = pl.when(pl.col("reason").is_null()).then(side.otherwise(pl.lit("train")))
    return found.with_columns(split=split)


def write_splits(
    directory: Path, sequences: Mapping[str, pl.LazyFrame], found: pl.DataFrame, val_share: float
) -> None:
    """Write the three files, each in the order of the index `found`."""
    roles = dict(found.select("dataset", "role").unique().rows())
    held_out = in_val(val_share, smallest_bucket(found.filter(pl.col("role") == "train")))
    sides = {"train": ("train", ~held_out), "val": ("train", held_out), "eval": ("eval", None)}
    for split in paths.SPLITS:
        role, side = sides[split]
        parts = [chosen(rows, side) for name, rows in sequences.items() if roles.get(name, role) == role]
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
        for piece in pieces(written):
            check(Sequences, piece, str(path))
            problems += [find_problems(piece, profile), find_differences(piece, expected)]
            counts.append(kind_counts(piece))
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


def _refuse_duplicates(found: pl.DataFrame) -> None:
    twice = found.filter(pl.col("sequence_id").is_duplicated())["sequence_id"]
    if len(twice):
        raise GateError(
            f"{twice.n_unique()} sequences are there more than once, for example {twice[0]}",
            hint="a sample_id must not look like another one with `#turn` behind it; rename it in the source",
        )
