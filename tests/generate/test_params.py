"""The `generate` section."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from eyas.config import build, load_section
from eyas.errors import ConfigError
from eyas.generate.params import GenerateParams
from tests.generate.example import GENERATE

SHIPPED = Path(__file__).parents[2] / "params.yaml"


def test_the_shipped_section_is_valid() -> None:
    assert load_section("generate", GenerateParams, SHIPPED).dialect == "vllm"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("dialect", "trtllm"),
        ("temperature", -0.1),
        ("top_p", 0.0),
        ("top_p", 1.1),
        ("top_k", -1),
        ("max_tokens", 0),
        ("max_failed_share", 1.0),
        ("max_failed_share", -0.1),
        ("gate_rows", 7),
        ("gate_min_reasoning_share", -0.1),
        ("gate_max_truncated_share", 1.1),
        ("temprature", 1.0),
    ],
)
def test_an_impossible_value_is_named(key: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=key):
        build("generate", GenerateParams, GENERATE | {key: value})


def test_template_arguments_keep_their_types() -> None:
    arguments = {"enable_thinking": True, "budget": 5, "name": "x"}
    params = build("generate", GenerateParams, GENERATE | {"chat_template_kwargs": arguments})
    assert params.chat_template_kwargs == arguments


def test_sglang_chat_can_not_stream_with_token_ids() -> None:
    with pytest.raises(ConfigError, match=r"stream.*sglang-generate"):
        build("generate", GenerateParams, GENERATE | {"dialect": "sglang", "stream": True})
    build("generate", GenerateParams, GENERATE | {"dialect": "sglang-generate", "stream": True})
