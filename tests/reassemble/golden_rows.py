"""Validated rows of golden turns, as a server with token ids, or one without, would have answered them."""

from __future__ import annotations

from typing import Any

import polars as pl

from tests.families import FAMILIES
from tests.golden import Family, GoldenTurn
from tests.hand_made import raw, validated

ALL_TURNS = [(family, turn) for family in FAMILIES.values() for turn in family.turns]
NAMES = [f"{family.name}-{turn.name}" for family, turn in ALL_TURNS]


def row_of(family: Family, turn: GoldenTurn, /, **changes: Any) -> dict[str, Any]:
    """The row of a turn, texts stripped as some servers do; `stop_reason` names the end if there are several."""
    ends = {family.markers[token] for token in family.eos[1:]}
    last = turn.generated_ids[-1]
    values: dict[str, Any] = {
        "sample_id": f"{family.name}:{turn.name}",
        "messages": turn.messages,
        "prompt_token_ids": turn.prompt_ids,
        "token_ids": turn.generated_ids,
        "reasoning": turn.reasoning,
        "content": turn.content,
        "tool_calls": turn.tool_calls,
        "finish_reason": turn.finish_reason,
        "stop_reason": str(last) if last in ends and not turn.truncated else None,
        "truncated": turn.truncated,
    }
    return raw(**(values | changes))


def table_of(*rows: dict[str, Any]) -> pl.DataFrame:
    return validated(list(rows))
