"""The record of an answer in the journal."""

from __future__ import annotations

import json

import pytest

from eyas.generate.record import Answer, Usage
from tests.generate import replies
from tests.generate.reading import MODES, read


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("turn", replies.TURNS.values(), ids=replies.TURNS)
@pytest.mark.parametrize("server", ["vllm", "openai"])
def test_an_answer_survives_json(server: str, mode: str, turn: replies.Turn) -> None:
    answer = read(server, mode, turn)
    assert Answer.from_json(json.loads(json.dumps(answer.to_json()))) == answer


def test_the_keys_of_the_journal() -> None:
    answer = Answer(
        model="tiny",
        reasoning="R",
        content=None,
        tool_calls=[replies.CALL],
        finish_reason="tool_calls",
        stop_reason=7,
        usage=Usage(5, None, 1),
        prompt_token_ids=None,
        token_ids=None,
        reasoning_field="reasoning",
        streamed=True,
        flags=["lossy_text"],
    )
    assert answer.to_json() == {
        "model": "tiny",
        "reasoning": "R",
        "content": None,
        "tool_calls": [replies.CALL],
        "finish_reason": "tool_calls",
        "stop_reason": 7,
        "usage": {"prompt_tokens": 5, "completion_tokens": None, "reasoning_tokens": 1},
        "prompt_token_ids": None,
        "token_ids": None,
        "reasoning_field": "reasoning",
        "streamed": True,
        "flags": ["lossy_text"],
    }
