"""Hand-made rows and a hand-made target for the tests of validate, reassemble and vocab.

The target has a vocabulary of 40 ids: 1 starts a message, 2 ends it, 3 and 4 are think markers; its generation
prompt is [1, 9, 10].
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any

import polars as pl

from eyas.schema import Prompts, Responses, Validated, columns_of
from eyas.target.spec import TargetProfile, ThinkFormat

START, END, THINK, END_THINK = 1, 2, 3, 4
GENERATION_PROMPT = [START, 9, 10]
PROMPT_IDS = [START, 8, 10, 20, 21, END, 10, *GENERATION_PROMPT]

THINKING = ThinkFormat("hand-made", "<think>", "</think>", [THINK], [END_THINK], prefilled=False)
"""The target's think format where a test lets it think; the target writes the opening marker itself."""


def profile(**changes: Any) -> TargetProfile:
    plain = TargetProfile(
        name="hand-made",
        source="folder:hand-made",
        revision=None,
        digest="0" * 64,
        architecture="LlamaForCausalLM",
        model_type="llama",
        num_layers=6,
        hidden_size=8,
        intermediate_size=16,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=4,
        vocab_size=40,
        rms_norm_eps=1e-5,
        hidden_act="silu",
        max_position_embeddings=128,
        rope_theta=10000.0,
        rope_scaling=None,
        tie_word_embeddings=True,
        dtype="float32",
        aux_layer_ids=[2, 3],
        bos_token_id=START,
        pad_token_id=END,
        end_of_turn_ids=[END],
        special_ids=[0, START, END, THINK, END_THINK],
        think=None,
        generation_prompt_ids=GENERATION_PROMPT,
        chat_template_digest="0" * 64,
    )
    return replace(plain, **changes)


def hash_of(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def raw(sample_id: str = "talk:1", **changes: Any) -> dict[str, Any]:
    """A line of raw_responses.jsonl: three words and an end of turn; usage follows the ids unless given."""
    row: dict[str, Any] = {
        "sample_id": sample_id,
        "turn": 0,
        "dataset": sample_id.split(":", maxsplit=1)[0],
        "prompt_hash": hash_of(sample_id),
        "messages": [{"role": "user", "content": f"question {sample_id}"}],
        "tools": None,
        "reasoning": None,
        "content": "an answer of words",
        "tool_calls": None,
        "finish_reason": "stop",
        "stop_reason": None,
        "prompt_token_ids": PROMPT_IDS,
        "token_ids": [30, 31, 32, END],
        "flags": [],
        "model": "hand-made",
        "request_key": hash_of("key " + sample_id),
        **changes,
    }
    counts = {
        "prompt_tokens": len(row["prompt_token_ids"] or []) or None,
        "completion_tokens": len(row["token_ids"] or []) or None,
        "reasoning_tokens": None,
    }
    return {**row, "usage": changes.get("usage", counts)}


def prompt_of(row: dict[str, Any], task: str | None = None) -> dict[str, Any]:
    """The row of the prompt table that a response answers."""
    columns = ("sample_id", "dataset", "messages", "tools", "prompt_hash")
    return {key: row[key] for key in columns} | {"task": task}


def prompts(rows: list[dict[str, Any]]) -> pl.DataFrame:
    return pl.DataFrame([prompt_of(row) for row in rows], schema=columns_of(Prompts))


def responses(rows: list[dict[str, Any]]) -> pl.DataFrame:
    """As validate reads them: usage flattened, and the line itself in `row`."""
    flat = [
        row
        | {f"usage_{key}": value for key, value in (row["usage"] or {}).items()}
        | {"row": row["sample_id"]}
        for row in rows
    ]
    return pl.DataFrame(flat, schema={**columns_of(Responses), "row": pl.String})


def validated(rows: list[dict[str, Any]]) -> pl.DataFrame:
    """As reassemble reads them; `truncated` and `task` from the row, else False and null."""
    table = (
        responses(rows)
        .drop("row")
        .with_columns(
            truncated=pl.Series([row.get("truncated", False) for row in rows], dtype=pl.Boolean),
            task=pl.Series([row.get("task") for row in rows], dtype=pl.String),
        )
    )
    return table.select(columns_of(Validated).names())
