"""Conversations for tests: prompt tables of them, answers, and the journal entries that hold these."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars as pl

from eyas.generate.params import GenerateParams
from eyas.generate.publish import Responses
from eyas.generate.record import Answer, Usage
from eyas.generate.request import ChatRequest, fingerprint
from eyas.generate.table import PromptTable
from eyas.journal import Journal
from eyas.schema import PROMPTS_SCHEMA, Prompts, check
from tests.generate.example import generate_params, profile

PARAMS = generate_params(max_failed_share=0.99)
SERVER = {"version": "0.32.0", "max_model_len": 512, "url": "http://127.0.0.1:1"}

Message = dict[str, Any]


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def tool(text: str, call: str = "source-call") -> Message:
    return {"role": "tool", "content": text, "tool_call_id": call}


def given(text: str) -> Message:
    return {"role": "assistant", "content": text}


def call(identity: str, name: str = "look", arguments: str = "{}") -> dict[str, Any]:
    return {"id": identity, "type": "function", "function": {"name": name, "arguments": arguments}}


def answer(content: str | None = "an answer", **changes: Any) -> Answer:
    values: dict[str, Any] = {
        "model": "m",
        "reasoning": None,
        "content": content,
        "tool_calls": None,
        "finish_reason": "stop",
        "stop_reason": None,
        "usage": Usage(2, 3, None),
        "prompt_token_ids": [7, 8],
        "token_ids": [4, 5, 2],
        "reasoning_field": None,
        "streamed": False,
        "flags": [],
    }
    return Answer(**values | changes)


def write_table(path: Path, *conversations: Sequence[Message], tools: str | None = None) -> PromptTable:
    """A prompt table of these conversations under the ids talk:0000, talk:0001, ..."""
    rows = [
        {
            "sample_id": f"talk:{number:04}",
            "dataset": "talk",
            "messages": list(messages),
            "tools": tools,
            "prompt_hash": hashlib.sha256(str(number).encode()).hexdigest(),
            "task": None,
        }
        for number, messages in enumerate(conversations)
    ]
    frame = pl.DataFrame(rows, schema=PROMPTS_SCHEMA)
    check(Prompts, frame, str(path))
    frame.write_parquet(path)
    return PromptTable.read(path, "talk")


def open_journal(directory: Path, params: GenerateParams = PARAMS) -> Journal:
    return Journal(directory, fingerprint(profile(), params))


def responses(table: PromptTable, journal: Journal, params: GenerateParams = PARAMS) -> Responses:
    return Responses(table, journal, profile(), params)


def answered(request: ChatRequest, given_answer: Answer) -> dict[str, Any]:
    """The journal entry of an answer."""
    return {
        "key": request.key,
        "sample_id": request.sample_id,
        "turn": request.turn,
        "answer": given_answer.to_json(),
        "server": SERVER,
        "seconds": 0.5,
        "attempts": 1,
    }


def refused(request: ChatRequest, reason: str = "http_500") -> dict[str, Any]:
    """The journal entry of a failure."""
    return {
        "key": request.key,
        "sample_id": request.sample_id,
        "turn": request.turn,
        "error": {"kind": "transient", "reason": reason, "detail": "as scripted"},
    }
