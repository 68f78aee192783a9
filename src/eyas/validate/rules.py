"""The rules that one response must keep, as Polars expressions over the columns of schema.Responses.

A rule fails where its expression is true; null means that there is nothing to judge.
"""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from eyas.answers import FINISH_REASONS
from eyas.target.spec import TargetProfile
from eyas.validate.params import ValidateParams

THINK_MARKERS = ("<think>", "</think>")
"""As a server without a reasoning parser leaves them in the text."""
REPLACEMENT = "\ufffd"
"""Stands where a server could not decode ids to text."""

Ids = pl.col("token_ids")
PromptIds = pl.col("prompt_token_ids")


@dataclass(frozen=True)
class Rule:
    """One rule of validation."""

    name: str
    """Stable; counted in the report."""
    fails: pl.Expr
    """Boolean: the row breaks the rule."""
    value: pl.Expr
    """String: what was seen."""


def rules(profile: TargetProfile, params: ValidateParams, *, default_template: bool) -> list[Rule]:
    """All rules in the order in which they are applied: a row is quarantined by the first that it breaks.

    `default_template`: the prompts were rendered without template arguments, which can change how they end.
    """
    found = [*_ids(profile), *_ending(profile), *_text(params)]
    if profile.think_start_id is not None and profile.think_end_id is not None:
        found += _thinking(profile.think_start_id, profile.think_end_id)
    if default_template and profile.generation_prompt_ids:
        found.append(_generation_prompt(profile.generation_prompt_ids))
    return found


def ends_its_turn(profile: TargetProfile) -> pl.Expr:
    """Boolean: by its finish and stop reasons the target ended the turn itself, so an end-of-turn id is last.

    A stop string or a limit cuts the turn instead.
    """
    end_ids = [str(token) for token in profile.end_of_turn_ids]
    own_end = pl.col("stop_reason").is_null() | pl.col("stop_reason").is_in(end_ids)
    return pl.col("finish_reason").is_in(["stop", "tool_calls"]) & own_end


def _ids(profile: TargetProfile) -> list[Rule]:
    lengths = pl.format("{} ids, usage says {}", Ids.list.len(), "usage_completion_tokens")
    prompt_lengths = pl.format("{} ids, usage says {}", PromptIds.list.len(), "usage_prompt_tokens")
    both = pl.concat_list("prompt_token_ids", "token_ids")
    outside = (pl.element() < 0) | (pl.element() >= profile.vocab_size)
    return [
        Rule(
            "ids_missing", _missing(Ids) | _missing(PromptIds), pl.lit("no token ids, or a null among them")
        ),
        Rule(
            "prompt_ids_against_usage", PromptIds.list.len() != pl.col("usage_prompt_tokens"), prompt_lengths
        ),
        Rule("ids_against_usage", Ids.list.len() != pl.col("usage_completion_tokens"), lengths),
        Rule(
            "ids_outside_vocab",
            both.list.eval(outside).list.any(),
            pl.format("id {}", both.list.eval(pl.element().filter(outside)).list.first()),
        ),
    ]


def _missing(ids: pl.Expr) -> pl.Expr:
    return ids.is_null() | (ids.list.len() == 0) | ids.list.eval(pl.element().is_null()).list.any()


def _ending(profile: TargetProfile) -> list[Rule]:
    ends = profile.end_of_turn_ids
    last_is_end = Ids.list.last().is_in(ends)
    inside = Ids.list.eval(pl.element().is_in(ends)).list.head(Ids.list.len() - 1).list.any()
    seen = pl.format(
        "finish reason {}, stop reason {}, last id {}",
        _shown("finish_reason"),
        _shown("stop_reason"),
        Ids.list.last(),
    )
    return [
        Rule(
            "finish_reason",
            ~pl.col("finish_reason").is_in(FINISH_REASONS).fill_null(value=False),
            _shown("finish_reason"),
        ),
        Rule("end_of_turn_missing", ends_its_turn(profile) & ~last_is_end, seen),
        Rule("end_of_turn_after_cut", ~ends_its_turn(profile) & last_is_end, seen),
        Rule("end_of_turn_inside", inside, pl.lit("generated tokens follow an end-of-turn id")),
    ]


def _text(params: ValidateParams) -> list[Rule]:
    no_tools = pl.col("tool_calls").is_null() | (pl.col("tool_calls").list.len() == 0)
    found = [
        Rule("empty_answer", _blank("content") & _blank("reasoning") & no_tools, pl.lit("no text")),
        Rule(
            "too_short",
            Ids.list.len() < params.min_tokens,
            pl.format("{} generated tokens, minimum {}", Ids.list.len(), pl.lit(params.min_tokens)),
        ),
        *(_replacement_character(column) for column in ("content", "reasoning")),
        Rule(
            "duplicated_thinking",
            ~_blank("content") & pl.col("reasoning").str.starts_with(pl.col("content")),
            pl.format("the content is the start of the reasoning, {} characters", _length("content")),
        ),
    ]
    if params.expect_reasoning:
        found.append(Rule("reasoning_missing", _blank("reasoning"), pl.lit("no reasoning")))
    return found


def _replacement_character(column: str) -> Rule:
    """U+FFFD that neither the prompt has nor a cut inside a character explains."""
    text = pl.col(column)
    in_prompt = (
        pl.col("messages")
        .list.eval(pl.element().struct.field("content").str.contains(REPLACEMENT, literal=True))
        .list.any()
    )
    body = (
        pl.when(pl.col("finish_reason") == "length")
        .then(text.str.strip_chars_end(REPLACEMENT))
        .otherwise(text)
    )
    return Rule(
        f"replacement_character_in_{column}",
        body.str.contains(REPLACEMENT, literal=True) & ~in_prompt,
        pl.format("{} times U+FFFD", body.str.count_matches(REPLACEMENT, literal=True)),
    )


def _thinking(start: int, end: int) -> list[Rule]:
    counts = [Ids.list.count_matches(marker) for marker in (start, end)]
    in_content = pl.any_horizontal(
        pl.col("content").str.contains(marker, literal=True) for marker in THINK_MARKERS
    )
    return [
        Rule(
            "think_marker_in_content", in_content, pl.lit(f"one of {' '.join(THINK_MARKERS)} in the content")
        ),
        Rule(
            "think_markers_repeated",
            (counts[0] > 1) | (counts[1] > 1),
            pl.format("{} opening and {} closing markers", *counts),
        ),
    ]


def _generation_prompt(ids: list[int]) -> Rule:
    tail = PromptIds.list.tail(len(ids))
    return Rule(
        "generation_prompt",
        tail != pl.lit(ids, dtype=pl.List(pl.Int32)),
        pl.format(
            "the prompt ends with ids {}, the template's generation prompt is {}",
            tail.cast(pl.List(pl.String)).list.join(" "),
            pl.lit(" ".join(map(str, ids))),
        ),
    )


def _blank(column: str) -> pl.Expr:
    return pl.col(column).is_null() | (pl.col(column).str.strip_chars() == "")


def _length(column: str) -> pl.Expr:
    return pl.col(column).str.len_chars()


def _shown(column: str) -> pl.Expr:
    return pl.col(column).fill_null("null")
