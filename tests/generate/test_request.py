"""What decides an answer is in its key, and nothing else."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest

from eyas.generate.request import Message, build, fingerprint, row_seed
from eyas.hashing import digest
from tests.generate.example import generate_params, profile
from tests.generate.reading import PREFILLED, THINK

MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Grüße\u2028?"}]
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {}}}]


def key(
    messages: list[dict[str, str]] = MESSAGES,
    target: dict[str, Any] | None = None,
    tools: list[dict[str, Any]] | None = None,
    turn: int = 0,
    **changes: Any,
) -> str:
    target_profile, params = profile(**target or {}), generate_params(**changes)
    common = digest(fingerprint(target_profile, params))
    return build("a:1", messages, params, common, turn=turn, tools=tools).key


@pytest.mark.parametrize(
    "changes",
    [
        {"dialect": "openai"},
        {"temperature": 0.1},
        {"top_p": 0.5},
        {"top_k": 5},
        {"max_tokens": 17},
        {"chat_template_kwargs": {"thinking": False}},
        {"target": {"digest": "1" * 64}},
        {"target": {"dtype": "bfloat16"}},
        {"messages": [{"role": "user", "content": "Grüße?"}]},
        {"tools": TOOLS},
    ],
)
def test_what_decides_the_answer_changes_the_key(changes: dict[str, Any]) -> None:
    assert key(**changes) != key()


@pytest.mark.parametrize(
    "changes",
    [
        {"max_failed_share": 0.5},
        {"expect_reasoning": True},
        {"gate_rows": 50},
        {"seed": 3},
        {"stream": True},
        {"turn": 2},
        {"tools": []},
    ],
)
def test_what_does_not_decide_a_greedy_answer_keeps_the_key(changes: dict[str, Any]) -> None:
    assert key(**changes) == key()


@pytest.mark.parametrize(("dialect", "same"), [("vllm", True), ("sglang-generate", True), ("openai", False)])
def test_the_think_format_decides_answers_that_are_text_alone(dialect: str, same: bool) -> None:
    plain = key(dialect=dialect)
    assert (key(dialect=dialect, target={"think": THINK}) == plain) == same
    opened = {"think": PREFILLED}
    assert (key(dialect=dialect, target=opened) == key(dialect=dialect, target={"think": THINK})) == same


def test_the_seed_decides_a_sampled_answer() -> None:
    assert key(temperature=1.0, seed=1) != key(temperature=1.0, seed=2)


def test_the_key_of_today_is_the_key_of_tomorrow() -> None:
    # Written out by hand: a change of this value makes every user ask every prompt again.
    common = (
        '{"chat_template_kwargs":{},"dialect":"vllm","format_version":3,'
        '"sampling":{"max_tokens":16,"temperature":0.0,"top_k":0,"top_p":1.0},'
        f'"target":{{"digest":"{"0" * 64}","dtype":"float32","name":"tiny"}}}}'
    )
    request = (
        f'{{"fingerprint":"{hashlib.sha256(common.encode()).hexdigest()}","messages":['
        '{"content":"Be brief.","role":"system"},{"content":"Grüße\u2028?","role":"user"}]}'
    )
    assert key() == hashlib.sha256(request.encode()).hexdigest()


def test_a_request_says_what_is_asked() -> None:
    request = build("a:1", MESSAGES, generate_params(temperature=0.7), "f", turn=1, tools=TOOLS)
    assert (request.sample_id, request.turn, request.messages, request.tools) == ("a:1", 1, MESSAGES, TOOLS)
    assert request.seed == row_seed(0, MESSAGES)
    assert build("a:1", MESSAGES, generate_params(), "f").seed is None


def test_the_length_of_messages_without_content() -> None:
    calls: list[Message] = [{"role": "user", "content": "abc"}, {"role": "assistant", "tool_calls": []}]
    assert build("a:1", calls, generate_params(), "f").length == 3


def test_row_seeds_differ_by_prompt_and_fit_31_bits() -> None:
    seeds = {row_seed(0, [{"role": "user", "content": str(index)}]) for index in range(200)}
    assert len(seeds) == 200
    assert all(0 <= seed < 2**31 for seed in seeds)
    assert row_seed(0, MESSAGES) == row_seed(0, [dict(reversed(message.items())) for message in MESSAGES])
