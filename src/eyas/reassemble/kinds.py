"""The kind of every token, by the structure of its turn.

The prompt part is prompt, whatever it contains: a user who writes control tokens starts no turn. The generated part
is read from its start: at most one block of thinking, then the answer with its tool sections, then the end of turn.
Markers inside the answer open nothing: the first end marker ends the thinking for good.

    [gap start] R end C [tool section C]* end-of-turn
"""

from __future__ import annotations

import polars as pl

from eyas import tokenkinds
from eyas.schema import TOKEN_KINDS
from eyas.target.spec import TargetProfile, ThinkFormat, ToolFormat

NOT_OPENED = "thinking_not_opened"
"""An end marker, and nothing opens the thinking before it."""
NOT_CLOSED = "thinking_not_closed"
"""Thinking that the turn's own end cuts off."""

KIND = pl.UInt8
_PARTS = ("_front", "_lead", "_reasoning", "_close", "_ending")
_Generated = pl.col("token_ids")


def with_kinds(rows: pl.LazyFrame, profile: TargetProfile) -> pl.LazyFrame:
    """Add the columns `kinds` (of prompt and generated ids), `thinks` and `broken`.

    `thinks`: the turn has tokens of reasoning. `broken` says what is wrong with its thinking (NOT_OPENED, NOT_CLOSED),
    null if nothing.

    `rows` has prompt_token_ids, token_ids and truncated, as schema.Validated has them; ids are not null.
    """
    if profile.think is None:
        thinking = {name: _zero() for name in _PARTS[:-1]}
        parted = rows.with_columns(**thinking, _ending=_ending(profile), broken=pl.lit(None, dtype=pl.String))
    else:
        parted = _with_thinking(rows, profile.think, profile)
    body = pl.sum_horizontal(pl.col(_PARTS[:-1]))
    length = (_length(_Generated) - body - pl.col("_ending")).clip(lower_bound=0)
    kinds = pl.concat_list(
        _all(tokenkinds.PROMPT, pl.col("prompt_token_ids")),
        _run(tokenkinds.ANSWER, pl.col("_front")),
        _run(tokenkinds.THINK_MARKER, pl.col("_lead")),
        _all(tokenkinds.REASONING, _Generated).list.head(pl.col("_reasoning")),
        _run(tokenkinds.THINK_MARKER, pl.col("_close")),
        _answer(profile.tools, body, length),
        _run(tokenkinds.END_OF_TURN, pl.col("_ending")),
    )
    return parted.with_columns(kinds=kinds.cast(TOKEN_KINDS), thinks=pl.col("_reasoning") > 0).drop(_PARTS)


def prompt_opens(think: ThinkFormat) -> pl.Expr:
    """Boolean: the prompt ends with the opening marker, so the target begins inside its thinking.

    Seen in the prompt itself, because template arguments that the format does not know of can put the marker there.
    """
    return pl.any_horizontal(*(_ends_with(opening) for opening in think.openings))


def prompt_closes(think: ThinkFormat) -> pl.Expr:
    """Boolean: the prompt was rendered with thinking off, so the target does not begin inside its thinking."""
    if think.off_tail_ids is None or think.off_tail_ids == think.on_tail_ids:
        return pl.lit(value=False)
    return _ends_with(think.off_tail_ids)


def first(column: pl.Expr, ids: list[int]) -> pl.Expr:
    """Int64: where these ids first stand in a list of ids, null if nowhere."""
    return column.list.eval(_here(ids).arg_true()).list.first().cast(pl.Int64)


def _with_thinking(rows: pl.LazyFrame, think: ThinkFormat, profile: TargetProfile) -> pl.LazyFrame:
    """Lengths in tokens of what stands before the answer: up to the opening marker, thinking, end marker."""
    length = _length(_Generated)
    implicit = [first(_Generated, ids) for ids in think.implicit_end_ids]
    found = rows.with_columns(
        _ending=_ending(profile),
        _start=first(_Generated, think.start_ids),
        _end=first(_Generated, think.end_ids),
        _implicit=pl.min_horizontal(*implicit) if implicit else pl.lit(None, dtype=pl.Int64),
        _opened=prompt_opens(think),
        _closed=prompt_closes(think),
    )
    at_front = (pl.col("_start") <= tokenkinds.FRONT).fill_null(value=False)
    before_end = pl.col("_end").is_null() | (pl.col("_start") < pl.col("_end"))
    starts = at_front & before_end & ~pl.col("_opened")
    thinks = pl.col("_opened") | starts | (pl.col("_end").is_not_null() & ~pl.col("_closed"))
    explicit = pl.col("_end") <= pl.coalesce("_implicit", length)
    stop = pl.coalesce(pl.min_horizontal("_end", "_implicit"), length - pl.col("_ending"))
    headed = first(_Generated, think.answer_start_ids) == 0 if think.answer_start_ids else pl.lit(value=False)
    answer_head = pl.when(headed).then(len(think.answer_start_ids)).otherwise(0)
    lead = pl.when(starts).then(len(think.start_ids)).when(~thinks).then(answer_head)
    unopened = pl.col("_end").is_not_null() & ~(pl.col("_opened") | starts | pl.col("_closed"))
    unclosed = thinks & pl.col("_end").is_null() & pl.col("_implicit").is_null() & ~pl.col("truncated")
    return (
        found.with_columns(
            _front=pl.when(starts).then("_start").otherwise(0).cast(pl.Int64),
            _lead=lead.otherwise(0).cast(pl.Int64),
            broken=pl.when(unopened).then(pl.lit(NOT_OPENED)).when(unclosed).then(pl.lit(NOT_CLOSED)),
        )
        .with_columns(
            _reasoning=pl.when(thinks)
            .then(stop - pl.col("_front") - pl.col("_lead"))
            .otherwise(0)
            .clip(lower_bound=0),
            _close=pl.when(thinks & explicit).then(len(think.end_ids)).otherwise(0).cast(pl.Int64),
        )
        .drop("_start", "_end", "_implicit", "_opened", "_closed")
    )


def _answer(tools: ToolFormat | None, offset: pl.Expr, length: pl.Expr) -> pl.Expr:
    """Kinds of what stands behind the thinking: tool sections with their markers, and the rest."""
    if tools is None:
        return _all(tokenkinds.ANSWER, _Generated).list.head(length)
    opens = pl.any_horizontal(*(_here(ids) for ids in tools.start_ids))
    closed = pl.lit(value=False)
    if tools.end_ids:  # the marker's own tokens still belong to the section
        closed = _here(tools.end_ids).shift(len(tools.end_ids), fill_value=False)
    event = pl.when(opens).then(1).when(closed).then(0)
    inside = event.otherwise(None).forward_fill().fill_null(0)
    kind = pl.when(inside == 1).then(tokenkinds.TOOL_CALL).otherwise(tokenkinds.ANSWER).cast(KIND)
    return _Generated.list.slice(offset, length).list.eval(kind)


def _here(ids: list[int]) -> pl.Expr:
    """Boolean, inside list.eval: these ids start at this element."""
    return pl.all_horizontal(
        *(
            (pl.element() if place == 0 else pl.element().shift(-place)).eq(token).fill_null(value=False)
            for place, token in enumerate(ids)
        )
    )


def _ends_with(tail: list[int]) -> pl.Expr:
    ids = pl.lit(tail, dtype=pl.List(pl.Int32))
    return pl.col("prompt_token_ids").list.tail(len(tail)) == ids


def _ending(profile: TargetProfile) -> pl.Expr:
    """1 where the last token ends the turn, else 0."""
    last = _Generated.list.last().is_in(profile.end_of_turn_ids)
    return (last & ~pl.col("truncated")).cast(pl.Int64)


def _length(ids: pl.Expr) -> pl.Expr:
    return ids.list.len().cast(pl.Int64)


def _run(kind: int, length: pl.Expr) -> pl.Expr:
    """A few tokens of a kind."""
    return pl.lit(kind, dtype=KIND).repeat_by(length)


def _all(kind: int, ids: pl.Expr) -> pl.Expr:
    """The kind for each of these ids: for long runs several times as fast as repeating it."""
    value = pl.lit(kind, dtype=KIND)
    return ids.list.eval(pl.when(pl.element().is_null()).then(value).otherwise(value))


def _zero() -> pl.Expr:
    return pl.lit(0, dtype=pl.Int64)
