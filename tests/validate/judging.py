"""Judging hand-made rows as the stage does."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import polars as pl

from eyas.target.spec import TargetProfile
from eyas.validate.judgement import Judged, judge
from eyas.validate.params import ValidateParams
from eyas.validate.responses import ServerNotes
from eyas.validate.rules import rules
from eyas.validate.turns import asked_of
from tests import hand_made

PLAIN = hand_made.profile()
THINKING = hand_made.profile(think=hand_made.THINKING)
PREFILLED = hand_made.profile(
    think=replace(
        hand_made.THINKING,
        prefilled=True,
        on_kwargs={"thinking": True},
        off_kwargs={"thinking": False},
        on_tail_ids=[*hand_made.GENERATION_PROMPT, hand_made.THINK],
        off_tail_ids=[*hand_made.GENERATION_PROMPT, hand_made.THINK, hand_made.END_THINK],
    ),
    generation_prompt_ids=[*hand_made.GENERATION_PROMPT, hand_made.THINK],
)
OPEN_PROMPT = [*hand_made.PROMPT_IDS, hand_made.THINK]
"""A prompt of PREFILLED."""

PARAMS = ValidateParams(
    min_tokens=2,
    expect_reasoning=False,
    allow_repeated_markers=True,
    text_sample=0,
    max_quarantined_share=1.0,
    max_truncated_share=1.0,
    max_unreasoned_share=1.0,
    max_short_share=1.0,
    max_text_difference_share=1.0,
)
EXPECTING = replace(PARAMS, expect_reasoning=True)
IDS = ServerNotes(template_kwargs={}, text_only=False)
TEXT = ServerNotes(template_kwargs={}, text_only=True)


def text(**changes: Any) -> dict[str, Any]:
    """A row of a server that sends no token ids."""
    usage = {"prompt_tokens": 10, "completion_tokens": 5, "reasoning_tokens": None}
    return hand_made.raw(**{"prompt_token_ids": None, "token_ids": None, "usage": usage} | changes)


def judged(
    rows: list[dict[str, Any]],
    target: TargetProfile = PLAIN,
    params: ValidateParams = PARAMS,
    notes: ServerNotes = IDS,
    *,
    prompts: pl.DataFrame | None = None,
) -> Judged:
    """Judge rows as one batch; `prompts` default to those that the rows themselves name."""
    responses = hand_made.responses(rows).drop("row").with_row_index("offset")
    responses = responses.with_columns(pl.col("offset").cast(pl.Int64), size=pl.lit(0, dtype=pl.Int64))
    asked = asked_of(hand_made.prompts(rows) if prompts is None else prompts)
    found = judge(responses, asked, rules(target, params, notes), target, sample=params.text_sample)
    assert found.validated.height + len(found.ledger["rule"].drop_nulls()) == len(rows)
    return found


def broken(
    row: dict[str, Any],
    target: TargetProfile = PLAIN,
    params: ValidateParams = PARAMS,
    notes: ServerNotes = IDS,
) -> tuple[str, str] | None:
    """The first rule that a row breaks, and the value seen; None if it is valid."""
    rule, value = judged([row], target, params, notes).ledger.select("rule", "value").row(0)
    return None if rule is None else (rule, value)


def flags(
    row: dict[str, Any],
    target: TargetProfile = PLAIN,
    params: ValidateParams = PARAMS,
    notes: ServerNotes = IDS,
) -> list[str]:
    """Flags of a row that stays valid."""
    found = judged([row], target, params, notes).validated
    assert found.height == 1
    return list(found["flags"][0])
