"""How each row's generated ids divide into thinking and answer, by the markers of the target's think format.

The opening marker is the end of the prompt, if the template writes it, or stands at the front of the answer; one
further inside is literal text. The first closing marker behind it, or opening of a tool section where that ends
thinking too, ends the block. Prompts are looked at only at their end: a user's text may hold any marker.
"""

from __future__ import annotations

import polars as pl

from eyas.schema import TOKEN_IDS
from eyas.target.spec import TargetProfile, ThinkFormat
from eyas.tokenkinds import FRONT
from eyas.validate.markers import count, first, first_of, tokens_of

SHAPE = pl.Schema(
    {
        "prefilled": pl.Boolean,
        "thinking_off": pl.Boolean,
        "opening_at": pl.Int64,
        "closing_at": pl.Int64,
        "num_openings": pl.Int64,
        "num_closings": pl.Int64,
        "thinking_from": pl.Int64,
        "thinking_to": pl.Int64,
        "answer_from": pl.Int64,
        "opened": pl.Boolean,
        "closed": pl.Boolean,
        "markers_left": pl.Boolean,
        "thinking_tokens": pl.Int64,
        "answer_tokens": pl.Int64,
    }
)
"""Columns that `with_shape` adds; all null where a row has no ids or the target no think format.

prefilled        the prompt ends with the opening marker, bare or with its gap, whatever the format expects: a template
                 argument that no switch is known for may write it
thinking_off     the prompt ends as the template ends it with thinking switched off
opening_at       index of the first opening marker that was generated
closing_at       index of the first closing marker
thinking_from    index of the first token of thinking; null without thinking
thinking_to      index of the first token behind it; null where it has no end
answer_from      index of the first token of the answer, 0 without thinking; null where thinking has no end
opened, closed   whether thinking was opened, and ended
markers_left     there are more markers than those that open and close
thinking_tokens  tokens between them, or up to the end; 0 if not opened
answer_tokens    tokens behind the thinking, the end of the turn apart
"""


def with_shape(rows: pl.DataFrame, profile: TargetProfile) -> pl.DataFrame:
    """Add the columns of SHAPE; `rows` has those of schema.Responses."""
    think = profile.think
    if think is None:
        return rows.with_columns(pl.lit(None, dtype=dtype).alias(name) for name, dtype in SHAPE.items())
    tokens = tokens_of(rows["token_ids"])
    ids, prompt = pl.col("token_ids"), pl.col("prompt_token_ids")
    found = rows.with_columns(
        opening_at=first(tokens, think.start_ids),
        closing_at=first(tokens, think.end_ids),
        num_openings=count(tokens, think.start_ids),
        num_closings=count(tokens, think.end_ids),
        implicit_end=first_of(tokens, think.implicit_end_ids),
        num_tokens=ids.list.len().cast(pl.Int64) - ids.list.last().is_in(profile.end_of_turn_ids),
        prefilled=pl.any_horizontal(_ends_with(prompt, opening) for opening in think.openings),
        thinking_off=_ends_with(
            prompt, think.off_tail_ids if think.off_tail_ids != think.on_tail_ids else None
        ),
    )
    return _divided(found, think).drop("implicit_end", "num_tokens")


def opens_in_front() -> pl.Expr:
    """Boolean, never null: an opening marker was generated at the front of the answer, with no closing one before."""
    closing = pl.col("closing_at")
    first_of_all = closing.is_null() | (pl.col("opening_at") < closing)
    return ((pl.col("opening_at") <= FRONT) & first_of_all).fill_null(value=False)


def _ends_with(ids: pl.Expr, tail: list[int] | None) -> pl.Expr:
    """Boolean: a list of ids ends with these; null without a list, false without a tail."""
    if tail is None:
        return pl.when(ids.is_not_null()).then(statement=False)
    return ids.list.tail(len(tail)) == pl.lit(tail, dtype=TOKEN_IDS)


def _divided(found: pl.DataFrame, think: ThinkFormat) -> pl.DataFrame:
    known = pl.col("token_ids").is_not_null()
    prefilled = pl.col("prefilled").fill_null(value=False)
    own = opens_in_front() & ~prefilled
    begin, end = pl.col("thinking_from"), pl.col("thinking_to")
    explicit, implicit = (
        pl.when(pl.col(column) >= begin).then(column) for column in ("closing_at", "implicit_end")
    )
    behind = end + pl.when(end == pl.col("closing_at")).then(len(think.end_ids)).otherwise(0)
    parts = found.with_columns(
        thinking_from=pl.when(prefilled).then(0).when(own).then(pl.col("opening_at") + len(think.start_ids))
    )
    parts = parts.with_columns(thinking_to=pl.min_horizontal(explicit, implicit))
    parts = parts.with_columns(answer_from=pl.when(begin.is_not_null()).then(behind).when(known).then(0))
    thinking = pl.coalesce("thinking_to", "num_tokens") - begin
    return parts.with_columns(
        opened=pl.when(known).then(begin.is_not_null()),
        closed=pl.when(known).then(end.is_not_null()),
        markers_left=pl.when(known).then(
            (pl.col("num_openings") > own) | (pl.col("num_closings") > begin.is_not_null())
        ),
        thinking_tokens=pl.when(known).then(thinking.fill_null(0)),
        answer_tokens=pl.when(known).then((pl.col("num_tokens") - pl.col("answer_from")).fill_null(0)),
    )
