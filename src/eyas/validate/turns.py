"""The set rule: what was to be generated, and that each turn of it has exactly one outcome.

A turn is generated behind every user turn, and behind every block of tool turns, that no given assistant turn
follows. An empty assistant turn gives nothing: it parts two blocks of tool turns, and is generated too.
"""

from __future__ import annotations

from pathlib import Path

import polars as pl

from eyas.errors import ArtifactError, GateError
from eyas.schema import Prompts, columns_of
from eyas.tables import read_pieces
from eyas.validate.params import EXAMPLES

KEY = ["sample_id", "turn"]
"""What names a generated turn in every table."""


def read_asked(path: Path) -> pl.DataFrame:
    """`asked_of` a prompt table that may be larger than memory.

    Raises:
        ArtifactError: no prompt table, or one with a repeated sample_id.
    """
    pieces = [asked_of(piece) for piece in read_pieces(path, Prompts)]
    asked = pl.concat([asked_of(pl.DataFrame(schema=columns_of(Prompts))), *pieces])
    repeated = asked.filter(pl.col("sample_id").is_duplicated())["sample_id"]
    if len(repeated):
        raise ArtifactError(
            f"sample_id {repeated[0]} stands in {len(repeated)} rows",
            where=str(path),
            hint="dvc repro prompts",
        )
    return asked


def asked_of(prompts: pl.DataFrame) -> pl.DataFrame:
    """What validation keeps of schema.Prompts, a few bytes for each message.

    sample_id, task; hashes of prompt (`asked_hash`) and tools (`asked_tools`); `asked` one UInt64 for each message that is not an answer;
    `points` how many of those each generated turn has before it.
    """
    return prompts.select(
        "sample_id",
        "task",
        asked_tools=pl.col("tools").hash(),
        asked_hash="prompt_hash",
        asked=message_hashes(pl.col("messages")),
    ).hstack([points_of(prompts["messages"])])


def points_of(messages: pl.Series) -> pl.Series:
    """`generation_points`, named `points`; conversations that ask once, most of them, need no look at every message."""
    column, role = pl.col("messages"), pl.element().struct.field("role")
    others = column.list.eval(~role.is_in(["system", "user"])).list.any()
    questions = column.list.eval(role == "user").list.sum()
    once = (column.list.last().struct.field("role") == "user") & ~others & (questions == 1)
    table = messages.alias("messages").to_frame().with_row_index("place").with_columns(once=once)
    given = pl.concat_list(column.list.len())
    parts = [
        table.filter("once").select("place", points=given),
        table.filter(~pl.col("once")).select("place", points=generation_points(column)),
    ]
    return pl.concat(parts).sort("place")["points"]


def generation_points(messages: pl.Expr) -> pl.Expr:
    """List(UInt32): for each turn that is generated, the number of given messages before it, answers not counted.

    One system and two user turns: [2, 3].
    """
    turns = messages.list.eval(_speaker())
    here, after = pl.element(), pl.element().shift(-1).fill_null("")
    asks = here.is_in(["user", "tool"]) & (after != "assistant") & ~((here == "tool") & (after == "tool"))
    given = ~here.is_in(["assistant", "open"])
    return turns.list.eval(given.cum_sum().cast(pl.UInt32).filter(asks))


def message_hashes(messages: pl.Expr) -> pl.Expr:
    """List(UInt64): one for each message that is not an answer, of its role and text."""
    role, content = (pl.element().struct.field(name) for name in ("role", "content"))
    text = pl.concat_str(role, pl.lit(":"), content, ignore_nulls=True)
    return messages.list.eval(text.filter(role != "assistant").hash())


def to_generate(asked: pl.DataFrame) -> pl.DataFrame:
    """sample_id and turn of everything that has an outcome, in order; `asked` as `asked_of` makes it."""
    turns = asked.select("sample_id", turn=pl.int_ranges(pl.col("points").list.len(), dtype=pl.Int32))
    return turns.explode("turn", empty_as_null=False)


def check_set(expected: pl.DataFrame, answered: pl.DataFrame, failed: pl.DataFrame) -> None:
    """Turns to generate = answers + failures, each once: nothing is lost and nothing is there twice.

    Each table has sample_id and turn.

    Raises:
        GateError: naming what is missing, foreign or repeated, with examples.
    """
    outcomes = pl.concat([answered.select(KEY), failed.select(KEY)])
    problems = {
        "have neither an answer nor an error": expected.join(outcomes, on=KEY, how="anti"),
        "are not in the prompt table": outcomes.join(expected, on=KEY, how="anti").unique(),
        "have more than one outcome": outcomes.filter(outcomes.is_duplicated()).unique(),
    }
    found = [
        f"{rows.height} turns {what} ({examples(rows)})" for what, rows in problems.items() if rows.height
    ]
    if found:
        raise GateError(
            f"prompts and responses do not match: {'; '.join(found)}",
            hint="`dvc repro generate` asks what is missing; answers that exist are not asked again",
        )


def examples(rows: pl.DataFrame) -> str:
    """The first few rows by name: the sample_id, with `#turn` for later turns than the first."""
    names = rows.select(name_of()).to_series().sort().head(EXAMPLES + 1).to_list()
    return ", ".join(names[:EXAMPLES]) + (", ..." if len(names) > EXAMPLES else "")


def name_of() -> pl.Expr:
    """String: how messages name a row."""
    later = pl.format("{}#{}", "sample_id", "turn")
    return pl.when(pl.col("turn") == 0).then("sample_id").otherwise(later).alias("name")


def _speaker() -> pl.Expr:
    """The role, or `open` for an assistant turn that gives nothing."""
    role, content, calls = (pl.element().struct.field(name) for name in ("role", "content", "tool_calls"))
    empty = (content.fill_null("") == "") & (calls.list.len().fill_null(0) == 0)
    return pl.when((role == "assistant") & empty).then(pl.lit("open")).otherwise(role)
