"""The sequence files: written in pieces, read again and checked as they lie there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import polars as pl

from eyas import paths
from eyas.errors import GateError
from eyas.reassemble.checks import PROBLEMS, find_differences, find_problems, refuse
from eyas.reassemble.inputs import pieces
from eyas.reassemble.report import kind_counts, total_counts
from eyas.reassemble.sequences import INDEX
from eyas.reassemble.split import Splitter, smallest_bucket
from eyas.schema import Sequences, check, columns_of
from eyas.tables import write_parted
from eyas.target.spec import TargetProfile

_COLUMNS = tuple(dict.fromkeys((*columns_of(Sequences), *INDEX, "opening")))


def write_sequences(
    directory: Path,
    sequences: Mapping[str, pl.LazyFrame],
    roles: Mapping[str, str],
    val_share: float,
    question_hash: Callable[[str], str],
) -> pl.DataFrame:
    """Write the three files in one pass over the answers; returns the index of all datasets, in order.

    `sequences` are sequences.candidates of each dataset. The index has `split`: the file in which each sequence stands,
    null if it is not used. `question_hash`: of a conversation's first question, the prompt hash of a conversation that
    asks nothing else.

    Raises:
        GateError: two sequences have the same id.
    """
    made = {name: rows.select(_COLUMNS) for name, rows in sequences.items()}
    found = _write_pass(directory, made, roles, Splitter(val_share, question_hash))
    if not found["split"].is_in(["val"]).any():  # then the smallest hash is held out, which is known only now
        smallest = smallest_bucket(found.filter(role="train"))
        found = _write_pass(directory, made, roles, Splitter(val_share, question_hash, smallest))
    _refuse_repeated(found)
    return found


def _write_pass(
    directory: Path, sequences: Mapping[str, pl.LazyFrame], roles: Mapping[str, str], splitter: Splitter
) -> pl.DataFrame:
    nothing = splitter.assign(pl.DataFrame(schema=INDEX | {"opening": pl.String()}), "eval")
    index = {name: [nothing] for name in sequences}

    def batches() -> Iterator[pl.DataFrame]:
        for name in sorted(
            sequences, key=lambda name: roles[name] != "eval"
        ):  # first: no training has its prompts
            for piece in pieces(sequences[name]):
                known = splitter.assign(piece.select(*INDEX, "opening"), roles[name])
                index[name].append(known)
                used = piece.with_columns(known["split"]).filter(pl.col("split").is_not_null())
                yield used.select(*columns_of(Sequences), "split")

    files = {split: paths.sequences(split).name for split in paths.SPLITS}
    write_parted(directory, files, Sequences, batches(), "split")
    return pl.concat(part for parts in index.values() for part in parts)


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
