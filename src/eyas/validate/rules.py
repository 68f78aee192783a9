"""The rules that one response must keep, as Polars expressions.

They see the columns of schema.Responses, of shape.SHAPE, and of turns.asked_of. A rule fails where its expression is
true; null means that there is nothing to judge. Rules on ids judge rows that have ids, and rules on text those that
have none and need none. docs/validation.md lists them all.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import polars as pl

from eyas.answers import FINISH_REASONS, REASONING_CONFLICT
from eyas.schema import TOKEN_IDS
from eyas.target.spec import TargetProfile
from eyas.target.think import prompt_tail
from eyas.validate import text_rules, think_rules
from eyas.validate.flags import calls_tools, has_flag, is_blank
from eyas.validate.params import ValidateParams
from eyas.validate.responses import ServerNotes
from eyas.validate.rule import Rule, shown
from eyas.validate.turns import message_hashes

Ids = pl.col("token_ids")
PromptIds = pl.col("prompt_token_ids")


def rules(profile: TargetProfile, params: ValidateParams, notes: ServerNotes) -> list[Rule]:
    """All rules in the order in which they are applied: a row is quarantined under the first that it breaks."""
    found = [
        _prompt_changed(),
        *_ids(profile, text_only=notes.text_only),
        *_ending(profile),
        *_answer(params),
        *think_rules.rules(profile.think, params),
    ]
    if notes.text_only:
        found += text_rules.rules()
    if _tail_is_known(profile, notes.template_kwargs):
        found.append(_generation_prompt(prompt_tail(profile, notes.template_kwargs)))
    return found


def ends_its_turn(profile: TargetProfile) -> pl.Expr:
    """Boolean: by its finish and stop reasons the target ended the turn itself, so an end-of-turn id is last.

    A stop string or a limit cuts the turn instead (vllm-project/vllm#14170).
    """
    end_ids = [str(token) for token in profile.end_of_turn_ids]
    own_end = pl.col("stop_reason").is_null() | pl.col("stop_reason").is_in(end_ids)
    return pl.col("finish_reason").is_in(["stop", "tool_calls"]) & own_end


def _prompt_changed() -> Rule:
    """The answer belongs to other messages than the prompt table has under this sample_id and turn."""
    given = pl.col("asked").list.head(pl.col("points").list.get(pl.col("turn"), null_on_oob=True))
    same = (
        (pl.col("prompt_hash") == pl.col("asked_hash"))
        & (message_hashes(pl.col("messages")) == given)
        & (pl.col("tools").hash() == pl.col("asked_tools"))
    )
    return Rule("prompt_changed", ~same, pl.format("prompt hash {}", "prompt_hash"))


def _ids(profile: TargetProfile, *, text_only: bool) -> list[Rule]:
    lengths = pl.format("{} ids, usage says {}", Ids.list.len(), "usage_completion_tokens")
    prompt_lengths = pl.format("{} ids, usage says {}", PromptIds.list.len(), "usage_prompt_tokens")
    both = (PromptIds, Ids)
    outside = [(ids.list.min() < 0) | (ids.list.max() >= profile.vocab_size) for ids in both]
    missing = _missing(Ids) | _missing(PromptIds)
    if text_only:
        missing &= ~(Ids.is_null() & PromptIds.is_null())
    strange = (pl.element() < 0) | (pl.element() >= profile.vocab_size)
    first = pl.coalesce(ids.list.eval(pl.element().filter(strange)).list.first() for ids in both)
    return [
        Rule("ids_missing", missing, pl.lit("no token ids, or a null among them")),
        Rule(
            "prompt_ids_against_usage", PromptIds.list.len() != pl.col("usage_prompt_tokens"), prompt_lengths
        ),
        Rule("ids_against_usage", Ids.list.len() != pl.col("usage_completion_tokens"), lengths),
        Rule("ids_outside_vocab", pl.any_horizontal(*outside), pl.format("id {}", first)),
    ]


def _missing(ids: pl.Expr) -> pl.Expr:
    return ids.is_null() | (ids.list.len() == 0) | (ids.list.eval(pl.element().is_null()).list.any())


def _ending(profile: TargetProfile) -> list[Rule]:
    ends = profile.end_of_turn_ids
    last_is_end = Ids.list.last().is_in(ends)
    all_ends = Ids.list.eval(pl.element().is_in(ends)).list.sum()
    seen = pl.format(
        "finish reason {}, stop reason {}, last id {}",
        shown("finish_reason"),
        shown("stop_reason"),
        Ids.list.last(),
    )
    return [
        Rule(
            "finish_reason",
            ~pl.col("finish_reason").is_in(FINISH_REASONS).fill_null(value=False),
            shown("finish_reason"),
        ),
        Rule("end_of_turn_missing", ends_its_turn(profile) & ~last_is_end, seen),
        Rule("end_of_turn_after_cut", ~ends_its_turn(profile) & last_is_end, seen),
        Rule(
            "end_of_turn_inside",
            all_ends > last_is_end.cast(pl.Int32),
            pl.format("{} end-of-turn ids, the last id is {}", all_ends, Ids.list.last()),
        ),
    ]


def _answer(params: ValidateParams) -> list[Rule]:
    tokens = pl.coalesce(Ids.list.len().cast(pl.Int64), "usage_completion_tokens")
    return [
        Rule("empty_answer", is_blank("content") & is_blank("reasoning") & ~calls_tools(), pl.lit("no text")),
        Rule(
            "too_short",
            tokens < params.min_tokens,
            pl.format("{} generated tokens, minimum {}", tokens, pl.lit(params.min_tokens)),
        ),
        Rule(REASONING_CONFLICT, has_flag(REASONING_CONFLICT), pl.lit("two different reasonings")),
    ]


def _tail_is_known(profile: TargetProfile, template_kwargs: Mapping[str, Any]) -> bool:
    """Of all template arguments only the switch for thinking is known to change how prompts end."""
    switches: set[str] = set()
    if profile.think is not None:
        switches = {*profile.think.on_kwargs, *(profile.think.off_kwargs or ())}
    return set(template_kwargs) <= switches and bool(prompt_tail(profile, template_kwargs))


def _generation_prompt(ids: list[int]) -> Rule:
    """Behind a user turn: templates may ask otherwise for an answer to the results of tools."""
    tail = PromptIds.list.tail(len(ids))
    user = pl.col("messages").list.last().struct.field("role") == "user"
    return Rule(
        "generation_prompt",
        user & (tail != pl.lit(ids, dtype=TOKEN_IDS)),
        pl.format(
            "the prompt ends with ids {}, the template's generation prompt is {}",
            tail.cast(pl.List(pl.String)).list.join(" "),
            pl.lit(" ".join(map(str, ids))),
        ),
    )
