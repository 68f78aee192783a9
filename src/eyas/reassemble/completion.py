"""A validated table whose rows without ids get the ids of their text, in pieces, so that its size does not matter."""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import Any

import polars as pl

from eyas.reassemble.inputs import ValidatedTable, pieces
from eyas.reassemble.rendering import Renderer
from eyas.reassemble.text import TextRebuilder, length_refusal
from eyas.schema import TOKEN_IDS

_MADE: dict[str, pl.DataType | type[pl.DataType]] = {
    "prompt_token_ids": TOKEN_IDS,
    "token_ids": TOKEN_IDS,
    "origin": pl.String,
    "refused": pl.String,
}


def complete(
    table: ValidatedTable, directory: Path, renderer: Renderer, rebuilder: TextRebuilder
) -> ValidatedTable:
    """Write the table with `origin` and `refused` to a new folder; the order of the rows stays.

    Raises:
        InputError: the template refuses the messages of a row.
    """
    directory.mkdir(parents=True)
    nothing = table.rows().head(0).collect()  # so that a table without rows is a file too
    for number, piece in enumerate(chain([nothing], pieces(table.rows()))):
        _with_ids(piece, renderer, rebuilder).write_parquet(directory / f"{number:06}.parquet")
    return table.at(directory)


def _with_ids(piece: pl.DataFrame, renderer: Renderer, rebuilder: TextRebuilder) -> pl.DataFrame:
    lacking = pl.col("token_ids").is_null()
    numbered = piece.with_row_index("place")
    without = numbered.filter(lacking)
    made = _made(without, renderer.render(without), rebuilder)
    given = numbered.filter(~lacking).with_columns(
        origin=pl.lit("ids"), refused=pl.lit(None, dtype=pl.String)
    )
    both = pl.concat(
        [given, without.drop("prompt_token_ids", "token_ids").hstack(made).select(given.columns)]
    )
    return both.sort("place").drop("place")


def _made(rows: pl.DataFrame, prompts: list[list[int]], rebuilder: TextRebuilder) -> pl.DataFrame:
    """Prompt ids and generated ids of rows; both null where the text gives none."""
    found: list[dict[str, Any]] = []
    for turn, prompt_ids in zip(rows.iter_rows(named=True), prompts, strict=True):
        rebuilt = rebuilder.rebuild(turn, prompt_ids)
        refused = rebuilt.refused or length_refusal(rebuilt, len(prompt_ids), turn)
        ids = (None, None) if refused else (prompt_ids, rebuilt.token_ids)
        found.append(dict(zip(_MADE, (*ids, "text", refused), strict=True)))
    return pl.DataFrame(found, schema=_MADE)
