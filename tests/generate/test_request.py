"""What decides an answer is in its key, and nothing else."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest

from eyas.generate.request import build, fingerprint, row_seed
from eyas.hashing import digest
from tests.generate.example import generate_params, profile

MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Grüße\u2028?"}]


def key(
    messages: list[dict[str, str]] = MESSAGES, target: dict[str, Any] | None = None, **changes: Any
) -> str:
    target_profile, params = profile(**target or {}), generate_params(**changes)
    common = digest(fingerprint(target_profile, params))
    return build("a:1", messages, target_profile, params, common).key


def test_every_sampling_parameter_is_explicit() -> None:
    params = generate_params(
        temperature=0.7, top_p=0.9, top_k=40, chat_template_kwargs={"enable_thinking": True}
    )
    body = build("a:1", MESSAGES, profile(), params, "f").body
    assert body == {
        "model": "tiny",
        "messages": MESSAGES,
        "n": 1,
        "stream": False,
        "temperature": 0.7,
        "top_p": 0.9,
        "top_k": 40,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "max_tokens": 16,
        "min_tokens": 0,
        "seed": row_seed(0, MESSAGES),
        "return_token_ids": True,
        "skip_special_tokens": False,
        "spaces_between_special_tokens": False,
        "chat_template_kwargs": {"enable_thinking": True},
    }


@pytest.mark.parametrize(
    "changes",
    [
        {"temperature": 0.1},
        {"top_p": 0.5},
        {"top_k": 5},
        {"max_tokens": 17},
        {"chat_template_kwargs": {"thinking": False}},
        {"target": {"digest": "1" * 64}},
        {"target": {"dtype": "bfloat16"}},
        {"messages": [{"role": "user", "content": "Grüße?"}]},
    ],
)
def test_what_decides_the_answer_changes_the_key(changes: dict[str, Any]) -> None:
    assert key(**changes) != key()


@pytest.mark.parametrize("changes", [{"max_failed_share": 0.5}, {"expect_reasoning": True}, {"seed": 3}])
def test_what_does_not_decide_a_greedy_answer_keeps_the_key(changes: dict[str, Any]) -> None:
    assert key(**changes) == key()


def test_the_seed_decides_a_sampled_answer() -> None:
    assert key(temperature=1.0, seed=1) != key(temperature=1.0, seed=2)


def test_the_key_of_today_is_the_key_of_tomorrow() -> None:
    # Written out by hand: a change of this value makes every user ask every prompt again.
    common = (
        '{"chat_template_kwargs":{},"dialect":"vllm","format_version":2,'
        '"sampling":{"max_tokens":16,"temperature":0.0,"top_k":0,"top_p":1.0},'
        f'"target":{{"digest":"{"0" * 64}","dtype":"float32","name":"tiny"}}}}'
    )
    request = (
        f'{{"fingerprint":"{hashlib.sha256(common.encode()).hexdigest()}","messages":['
        '{"content":"Be brief.","role":"system"},{"content":"Grüße\u2028?","role":"user"}]}'
    )
    assert key() == hashlib.sha256(request.encode()).hexdigest()


def test_row_seeds_differ_by_prompt_and_fit_31_bits() -> None:
    seeds = {row_seed(0, [{"role": "user", "content": str(index)}]) for index in range(200)}
    assert len(seeds) == 200
    assert all(0 <= seed < 2**31 for seed in seeds)
    assert row_seed(0, MESSAGES) == row_seed(0, [dict(reversed(message.items())) for message in MESSAGES])
