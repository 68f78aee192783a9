"""server_profile.json: what is counted, and that nothing else is in it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from eyas.generate.record import Answer, Usage
from eyas.generate.server_profile import ServerProfile
from eyas.target.spec import ThinkFormat
from tests.generate.example import generate_params, profile

ANSWER = Answer(
    model="tiny",
    reasoning="R",
    content="C",
    tool_calls=None,
    finish_reason="stop",
    stop_reason=None,
    usage=Usage(3, 4, None),
    prompt_token_ids=[5, 6, 3],
    token_ids=[7, 4, 8, 2],
    reasoning_field="reasoning",
    streamed=False,
    flags=[],
)
THINK = ThinkFormat("kimi-k2.5", "<think>", "</think>", [3], [4], prefilled=True, on_tail_ids=[6, 3])


def entry(version: str | None = "0.32.0", **changes: Any) -> dict[str, Any]:
    server = {"version": version, "max_model_len": 512, "url": "http://127.0.0.1:4711/v1"}
    return {
        "key": "k",
        "answer": replace(ANSWER, **changes).to_json(),
        "server": server,
        "at": 1.5,
        "seconds": 2.0,
    }


def test_what_the_answers_had_in_common() -> None:
    params = generate_params(chat_template_kwargs={"thinking": True}, stream=True)
    servers = ServerProfile(params, profile(think=THINK))
    servers.add(entry())
    servers.add(entry("0.31.0", streamed=True, flags=["lossy_text", "think_marker_in_content"]))
    servers.add(
        entry(reasoning=None, reasoning_field=None, prompt_token_ids=[5, 6], usage=Usage(None, None, None))
    )
    servers.add(entry(
        None, reasoning_field="content", flags=["lossy_text"], finish_reason="length", usage=Usage(1, 2, 3),
        prompt_token_ids=None, token_ids=None, tool_calls=[{"id": "1"}],
    ))  # fmt: skip
    assert servers.to_json() == {
        "dialect": "vllm",
        "model": "tiny",
        "chat_template_kwargs": {"thinking": True},
        "versions": ["0.31.0", "0.32.0", None],
        "max_model_lens": [512],
        "rows": 4,
        "rows_streamed": 1,
        "rows_with_token_ids": 3,
        "rows_with_reasoning": 3,
        "rows_with_tool_calls": 1,
        "rows_by_reasoning_field": {"content": 1, "reasoning": 2},
        "rows_by_flag": {"lossy_text": 2, "think_marker_in_content": 1},
        "rows_by_finish_reason": {"length": 1, "stop": 3},
        "rows_by_usage_key": {"completion_tokens": 3, "prompt_tokens": 3, "reasoning_tokens": 1},
        "rows_by_prompt_end": {"other": 1, "think_marker": 2, "unknown": 1},
    }


def test_no_answers_and_no_thinking() -> None:
    servers = ServerProfile(generate_params(), profile())
    assert servers.to_json()["rows_with_token_ids"] == 0
    servers.add(entry())
    assert servers.to_json()["rows_by_prompt_end"] == {"other": 1}


def test_the_end_of_the_prompt_is_the_marker_bare_or_with_its_gap() -> None:
    """Qwen3.5's prompts end with the marker and a newline; the same marker elsewhere in a prompt opens nothing."""
    newline = replace(THINK, gap_after_start_ids=[198], on_tail_ids=[6, 3, 198])
    for ids, end in (([5, 6, 3, 198], "think_marker"), ([5, 6, 3], "think_marker"), ([5, 3, 6], "other")):
        servers = ServerProfile(generate_params(), profile(think=newline))
        servers.add(entry(prompt_token_ids=ids))
        assert servers.to_json()["rows_by_prompt_end"] == {end: 1}
