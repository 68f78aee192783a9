"""How far text is from the truth: answers whose ids are known, tokenised from their text and compared."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import polars as pl

from eyas.errors import GateError
from eyas.metrics import share
from eyas.reassemble.inputs import ValidatedTable, pieces
from eyas.reassemble.text import COLUMNS, TextRebuilder
from eyas.tables import ROW_GROUP

SAME, SAME_LENGTH, OTHER_LENGTH, REFUSED = "same", "same_length_other_ids", "other_length", "refused"
GROUPS = 8
OUTCOMES = (SAME, SAME_LENGTH, OTHER_LENGTH, REFUSED)
SCHEMA = pl.Schema(
    {
        "sample_id": pl.String,
        "turn": pl.Int32,
        "outcome": pl.String,
        "refused": pl.String,
        "position": pl.Int64,
        "server_id": pl.Int32,
        "text_id": pl.Int32,
    }
)
"""One row per measured answer. `position`, of the first differing id in the generated part, is null if there is none;
an id is null where its side has ended."""


def sample(tables: Iterable[ValidatedTable], rows: int) -> pl.DataFrame:
    """Which answers with ids are measured: those with the smallest prompt hashes, so the choice is as good as random.

    Of a table of more than GROUPS row groups only so many are looked at.

    Columns sample_id, turn; at most so many rows over all tables.
    """
    columns = ("sample_id", "turn", "prompt_hash")
    found = [
        part.filter(pl.col("prompt_token_ids").is_not_null()).select(columns).collect()
        for table in tables  # both ids come together, and those of prompts are read faster
        for part in _looked_at(table)
    ]
    return pl.concat(found).sort(*columns[::-1]).head(rows).select("sample_id", "turn")


def measure(table: ValidatedTable, chosen: pl.DataFrame, rebuilder: TextRebuilder) -> pl.DataFrame:
    """Compare the chosen answers of a table with what their text gives: columns SCHEMA."""
    found: list[dict[str, Any]] = []
    for part in _looked_at(table):
        columns = part.select("sample_id", "turn", "prompt_token_ids", "token_ids", *COLUMNS)
        near = columns.filter(
            pl.col("sample_id").is_in(chosen["sample_id"].implode())
        )  # the scan leaves out the others
        rows = near.join(chosen.lazy(), on=["sample_id", "turn"], how="semi", maintain_order="left")
        for piece in pieces(rows):
            found += [_compared(turn, rebuilder) for turn in piece.iter_rows(named=True)]
    return pl.DataFrame(found, schema=SCHEMA)


def _looked_at(table: ValidatedTable) -> list[pl.LazyFrame]:
    """All rows of a table, or of a large one row groups spread over it: the others need not be read."""
    rows = table.rows().select(pl.len()).collect().item()
    groups = -(-rows // ROW_GROUP)
    if groups <= GROUPS:
        return [table.rows()]
    return [table.rows().slice(groups * place // GROUPS * ROW_GROUP, ROW_GROUP) for place in range(GROUPS)]


def drift_report(measured: pl.DataFrame) -> dict[str, Any]:
    """Counts by outcome; shares of the answers whose text gives ids at all, null if none was measured.

    `undetected_share`: of those whose length is right, how many have other ids all the same.
    """
    counts = dict(measured["outcome"].value_counts().rows())
    same, same_length, other = (counts.get(outcome, 0) for outcome in OUTCOMES[:3])
    examples = measured.filter(pl.col("position").is_not_null()).sort("sample_id", "turn").head(3)
    return {
        "measured": measured.height,
        "outcomes": {outcome: counts.get(outcome, 0) for outcome in OUTCOMES},
        "drifted_share": share(same_length + other, same + same_length + other),
        "undetected_share": share(same_length, same + same_length),
        "refused": dict(measured["refused"].drop_nulls().value_counts().sort("refused").rows()),
        "examples": examples.select(
            "sample_id", "turn", "outcome", "position", "server_id", "text_id"
        ).to_dicts(),
    }


def refuse_drift(report: dict[str, Any], text_rows: int, max_share: float) -> None:
    """The gate of the text path.

    Raises:
        GateError: there are rows of text, and too many measured answers drift.
    """
    drifted = report["drifted_share"]
    if not text_rows or drifted is None or drifted <= max_share:
        return
    first = report["examples"][0]
    raise GateError(
        f"{drifted:.1%} of the {report['measured']} answers whose ids are known come out of their text with other ids, "
        f"`reassemble.max_drift_share` is {max_share:.1%}; {text_rows} sequences would be made of text. The first differs "
        f"at generated token {first['position']}, server {first['server_id']}, text {first['text_id']}",
        where=first["sample_id"],
        hint="use a server that returns token ids, or allow the drift with reassemble.max_drift_share",
    )


def _compared(turn: dict[str, Any], rebuilder: TextRebuilder) -> dict[str, Any]:
    """One row of SCHEMA."""
    ids = turn["token_ids"]
    rebuilt = rebuilder.rebuild(turn, turn["prompt_token_ids"])
    row = dict.fromkeys(SCHEMA) | {"sample_id": turn["sample_id"], "turn": turn["turn"]}
    if rebuilt.token_ids is None:
        return row | {"outcome": REFUSED, "refused": rebuilt.refused}
    if rebuilt.token_ids == ids:
        return row | {"outcome": SAME}
    both = zip(ids, rebuilt.token_ids, strict=False)
    shorter = min(len(ids), len(rebuilt.token_ids))
    position = next((place for place, (left, right) in enumerate(both) if left != right), shorter)
    return row | {
        "outcome": SAME_LENGTH if len(rebuilt.token_ids) == len(ids) else OTHER_LENGTH,
        "position": position,
        "server_id": ids[position] if position < len(ids) else None,
        "text_id": rebuilt.token_ids[position] if position < len(rebuilt.token_ids) else None,
    }
