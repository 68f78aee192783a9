"""Rules on rows that are text alone: the texts must stand for the tokens, or no sequence can be made of them."""

from __future__ import annotations

import polars as pl

from eyas.validate.flags import REJECTED_AS_TEXT, calls_tools, has_flag
from eyas.validate.rule import Rule

_TextOnly = pl.col("token_ids").is_null()


def rules() -> list[Rule]:
    """One rule for each flag that rejects a text, and one for tool calls.

    A tool call is only exact as ids: its arguments were parsed and written anew.
    """
    by_rule: dict[str, list[str]] = {}
    for flag, rule in REJECTED_AS_TEXT.items():
        by_rule.setdefault(rule, []).append(flag)
    calls = pl.col("tool_calls").list.len()
    return [
        Rule("tool_calls_without_ids", _TextOnly & calls_tools(), pl.format("{} tool calls", calls)),
        *(
            Rule(
                rule,
                _TextOnly & pl.any_horizontal(*(has_flag(flag) for flag in flags)),
                pl.format("flags {}, and no token ids", pl.col("flags").list.join(", ")),
            )
            for rule, flags in by_rule.items()
        ),
    ]
