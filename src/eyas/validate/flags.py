"""What a flag means to a row with token ids, and to a row of text alone.

With ids the sequence is exact whatever the texts say, so a flag stays on the row. Without ids the texts must stand for
the tokens, so most flags reject it.

flag                     with ids                                   text alone
server_parser_missing    kept: the division is ours                 kept: an undivided text is the most faithful one
think_marker_in_content  kept: the first end marker ends thinking   rejected
misfiled_reasoning       kept: without markers it is an answer      rejected: never trained as thinking
duplicated_thinking      rejected, unless the ids hold an answer    rejected
text_not_faithful        kept                                       rejected
lossy_text               kept                                       rejected: U+FFFD has no tokens of its own
surrogates_replaced      kept                                       rejected, as lossy_text
tool_call_in_reasoning   kept as reasoning                          kept as reasoning

The row itself is read again for what can be seen in it, so that a file which another program wrote is judged alike.
"""

from __future__ import annotations

import polars as pl

from eyas import answers
from eyas.target.spec import ThinkFormat

REPLACEMENT = "\ufffd"
"""Stands where a server could not decode ids to text."""
REJECTED_AS_TEXT = {
    answers.MISFILED_REASONING: answers.MISFILED_REASONING,
    answers.THINK_MARKER_IN_CONTENT: answers.THINK_MARKER_IN_CONTENT,
    answers.TEXT_NOT_FAITHFUL: answers.TEXT_NOT_FAITHFUL,
    answers.LOSSY_TEXT: answers.LOSSY_TEXT,
    answers.SURROGATES_REPLACED: answers.LOSSY_TEXT,
}
"""Flag -> the rule that it breaks where a row has no ids."""


def with_flags(rows: pl.DataFrame, think: ThinkFormat | None) -> pl.DataFrame:
    """`flags` with those added that the row itself shows, in the order of answers.FLAGS.

    `rows` has the columns of schema.Responses and of shape.SHAPE.
    """
    seen = _seen(think)
    flags = pl.col("flags")
    known = [
        pl.when(
            flags.list.contains(pl.lit(flag)) | seen.get(flag, pl.lit(value=False)).fill_null(value=False)
        )
        .then(pl.lit(flag))
        .alias(flag)
        for flag in answers.FLAGS
    ]
    others = flags.list.set_difference(pl.lit(list(answers.FLAGS), dtype=pl.List(pl.String)))
    return rows.with_columns(flags=pl.concat_list(*known, others).list.drop_nulls())


def has_flag(flag: str) -> pl.Expr:
    return pl.col("flags").list.contains(pl.lit(flag))


def is_blank(column: str) -> pl.Expr:
    """Boolean, never null: no text but whitespace."""
    return pl.col(column).fill_null("").str.strip_chars() == ""


def calls_tools() -> pl.Expr:
    """Boolean, never null: the answer has tool calls."""
    return (pl.col("tool_calls").list.len() > 0).fill_null(value=False)


def _seen(think: ThinkFormat | None) -> dict[str, pl.Expr]:
    reasoning, content = (pl.col(column).str.strip_chars() for column in ("reasoning", "content"))
    repeated = ~is_blank("content") & reasoning.str.starts_with(content)
    seen = {answers.DUPLICATED_THINKING: repeated, answers.LOSSY_TEXT: _lossy()}
    if think is None:
        return seen
    in_content = pl.any_horizontal(
        pl.col("content").str.contains(marker, literal=True) for marker in (think.start, think.end)
    )
    misfiled = (
        (pl.col("finish_reason") == "stop")
        & is_blank("content")
        & ~is_blank("reasoning")
        & ~calls_tools()
        & ~pl.col("closed").fill_null(value=False)
    )
    return seen | {
        answers.THINK_MARKER_IN_CONTENT: in_content.fill_null(value=False) | pl.col("markers_left"),
        answers.MISFILED_REASONING: misfiled,
    }


def _lossy() -> pl.Expr:
    """U+FFFD in a text; the prompt may hold it, and an answer then quote it."""
    answered = pl.any_horizontal(
        pl.col("reasoning", "content").str.contains(REPLACEMENT, literal=True).fill_null(value=False)
    )
    asked = pl.col("messages").list.eval(
        pl.element().struct.field("content").str.contains(REPLACEMENT, literal=True)
    )
    return answered & ~asked.list.any().fill_null(value=False)
