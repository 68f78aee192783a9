"""Rules on thinking: the markers among the ids, and texts that the ids can't have said."""

from __future__ import annotations

import polars as pl

from eyas.answers import DUPLICATED_THINKING
from eyas.target.spec import ThinkFormat
from eyas.tokenkinds import FRONT
from eyas.validate.flags import has_flag, is_blank
from eyas.validate.params import ValidateParams
from eyas.validate.rule import Rule, shown

CHARACTERS_PER_TOKEN = 128
"""No token of a text is longer, runs of white space apart: a text of more characters was not said by so few tokens."""

_Opened, _Closed = pl.col("opened"), pl.col("closed")
_HasIds = pl.col("token_ids").is_not_null()


def rules(think: ThinkFormat | None, params: ValidateParams) -> list[Rule]:
    """Rules on markers where the target has them, and on reasoning."""
    found = [_duplicated()]
    if think is not None:
        found += [*_order(), *_texts()]
        if not params.allow_repeated_markers:
            found.append(_repeated())
    if params.expect_reasoning:
        found.append(_unreasoned())
    return found


def _order() -> list[Rule]:
    """One opening marker, by the prompt or at the front of the answer, then one closing marker."""
    opening, closing = pl.col("opening_at"), pl.col("closing_at")
    places = pl.format(
        "opening marker at token {}, closing marker at token {}", shown_place(opening), shown_place(closing)
    )
    unopened = ~_Opened & closing.is_not_null() & ~pl.col("thinking_off")
    return [
        Rule("think_markers_swapped", unopened & (closing < opening), places),
        Rule(
            "think_start_missing",
            unopened,
            pl.format("{}; the prompt does not end with an opening marker", places),
        ),
        Rule(
            "think_start_repeated",
            pl.col("prefilled") & (opening <= FRONT),
            pl.format("the prompt ends with the opening marker, and token {} is another", opening),
        ),
        Rule(
            "think_end_missing",
            _Opened & ~_Closed & ~pl.col("truncated"),
            pl.format(
                "{} tokens of thinking without an end, finish reason {}",
                "thinking_tokens",
                shown("finish_reason"),
            ),
        ),
    ]


def _texts() -> list[Rule]:
    """Both texts are there: then the ids must hold both, as thinking that a template dropped would not."""
    both = _HasIds & ~is_blank("reasoning") & ~is_blank("content")
    return [
        _unsaid("reasoning_not_in_ids", "reasoning", "thinking_tokens", both),
        _unsaid("content_not_in_ids", "content", "answer_tokens", both),
    ]


def _unsaid(name: str, column: str, tokens: str, judged: pl.Expr) -> Rule:
    characters = pl.col(column).str.strip_chars().str.len_chars()
    return Rule(
        name,
        judged & (characters > pl.col(tokens) * CHARACTERS_PER_TOKEN),
        pl.format("{} characters of {}, {} tokens of it", characters, pl.lit(column), tokens),
    )


def _repeated() -> Rule:
    seen = pl.format("{} opening and {} closing markers", "num_openings", "num_closings")
    return Rule("think_markers_repeated", pl.col("markers_left"), seen)


def _duplicated() -> Rule:
    """A short answer may well be how its thinking starts: where the ids hold an answer, it is one."""
    answered = (pl.col("closed") & (pl.col("answer_tokens") > 0)).fill_null(value=False)
    seen = pl.format(
        "the content ({} characters) is the start of the reasoning ({}), {} tokens were generated",
        pl.col("content").str.len_chars(),
        pl.col("reasoning").str.len_chars(),
        pl.coalesce(pl.col("token_ids").list.len().cast(pl.Int64), "usage_completion_tokens"),
    )
    return Rule(DUPLICATED_THINKING, has_flag(DUPLICATED_THINKING) & ~answered, seen)


def _unreasoned() -> Rule:
    """No text of it, and nothing but white space between the markers."""
    thought = (pl.col("thinking_tokens") > FRONT).fill_null(value=False)
    return Rule("reasoning_missing", is_blank("reasoning") & ~thought, pl.lit("no reasoning"))


def shown_place(place: pl.Expr) -> pl.Expr:
    return place.cast(pl.String).fill_null("(none)")
