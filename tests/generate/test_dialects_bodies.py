"""What each server is sent: every sampling parameter explicit, no key that it does not know."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from eyas.errors import ConfigError
from eyas.generate.dialects.base import Dialect
from eyas.generate.failure import RowFailure
from eyas.generate.request import ChatRequest, build, row_seed
from tests.generate.example import generate_params
from tests.generate.reading import MESSAGES, make, request
from tests.hand_made_tokenizer import write_tokenizer

TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
SAMPLING: dict[str, Any] = {"temperature": 0.7, "top_p": 0.9}
STANDARD: dict[str, Any] = {
    "model": "tiny",
    "messages": MESSAGES,
    "stream": False,
    "temperature": 0.7,
    "top_p": 0.9,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "max_tokens": 16,
    "seed": row_seed(0, MESSAGES),
}


def asked(**changes: Any) -> ChatRequest:
    return build("a:1", MESSAGES, generate_params(**SAMPLING), "0" * 64, **changes)


def test_vllm() -> None:
    speaker = make("vllm", top_k=40, chat_template_kwargs={"enable_thinking": True}, **SAMPLING)
    assert speaker.body(asked(tools=TOOLS)) == STANDARD | {
        "n": 1,
        "top_k": 40,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "min_tokens": 0,
        "return_token_ids": True,
        "skip_special_tokens": False,
        "spaces_between_special_tokens": False,
        "chat_template_kwargs": {"enable_thinking": True},
        "tools": TOOLS,
    }


def test_sglang() -> None:
    assert make("sglang", **SAMPLING).body(asked()) == STANDARD | {
        "n": 1,
        "top_k": -1,  # SGLang refuses 0
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "min_tokens": 0,
        "return_token_ids": True,
        "skip_special_tokens": False,
        "separate_reasoning": True,
    }
    assert make("sglang", top_k=40, **SAMPLING).body(asked())["top_k"] == 40


def test_openai_is_sent_standard_keys_only() -> None:
    assert make("openai", **SAMPLING).body(asked()) == STANDARD
    assert make("openai", **SAMPLING, chat_template_kwargs={"a": 1}).body(asked(tools=TOOLS)) == STANDARD | {
        "chat_template_kwargs": {"a": 1},
        "tools": TOOLS,
    }


def test_openai_refuses_a_sampling_parameter_that_it_has_no_key_for() -> None:
    with pytest.raises(ConfigError, match="top_k is 40"):
        make("openai", top_k=40)


@pytest.mark.parametrize("server", ["vllm", "openai"])
def test_streams_ask_for_usage(server: str) -> None:
    body = make(server, stream=True).body(request())
    assert (body["stream"], body["stream_options"]) == (True, {"include_usage": True})
    assert "stream_options" not in make(server).body(request())


@pytest.mark.parametrize("server", ["vllm", "openai", "sglang"])
def test_a_greedy_request_has_no_seed(server: str) -> None:
    assert "seed" not in make(server).body(request())


@pytest.mark.parametrize("server", ["vllm", "openai", "sglang"])
def test_earlier_thinking_is_sent_under_the_name_that_servers_read(server: str) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    history: list[dict[str, Any]] = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "reasoning": "R", "content": None, "tool_calls": [call], "tool_call_id": None},
        {"role": "tool", "content": "1", "tool_call_id": "c"},
    ]
    assert make(server).body(request(history))["messages"] == [
        {"role": "user", "content": "a"},
        {"role": "assistant", "reasoning_content": "R", "tool_calls": [call]},
        {"role": "tool", "content": "1", "tool_call_id": "c"},
    ]


def test_sglang_does_not_stream() -> None:
    speaker = make("sglang")
    assert not speaker.supports_stream
    with pytest.raises(ConfigError, match="only without streaming"):
        speaker.collector(request())


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tokenizer(tmp_path_factory.mktemp("target"))


def test_generate_is_sent_ids(tokenizer: Path) -> None:
    speaker = make("sglang-generate", tokenizer=tokenizer, stream=True, **SAMPLING)
    body = speaker.body(asked(turn=1))
    assert body == {
        # <|start|>user\nadd one two<|end|>\n<|start|>assistant\n
        "input_ids": [1, 8, 10, 20, 21, 22, 2, 10, 1, 9, 10],
        "sampling_params": {
            "n": 1,
            "max_new_tokens": 16,
            "min_new_tokens": 0,
            "temperature": 0.7,
            "top_p": 0.9,
            "top_k": -1,
            "min_p": 0.0,
            "repetition_penalty": 1.0,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "stop_token_ids": [2],
            "skip_special_tokens": False,
            "spaces_between_special_tokens": False,
            "no_stop_trim": False,
            "sampling_seed": row_seed(0, MESSAGES),
        },
        "stream": True,
        "return_logprob": False,
    }


def test_generate_names_no_request_id(tokenizer: Path) -> None:
    """A body is sent again as it is, and SGLang refuses an id that is still in flight ("Duplicate request ID")."""
    assert "rid" not in make("sglang-generate", tokenizer=tokenizer).body(request())


def test_generate_renders_with_the_template_arguments(tokenizer: Path) -> None:
    plain = make("sglang-generate", tokenizer=tokenizer).body(request())
    opened = make("sglang-generate", tokenizer=tokenizer, chat_template_kwargs={"open_think": True})
    assert opened.body(request())["input_ids"] == [*plain["input_ids"], 3]
    assert "sampling_seed" not in plain["sampling_params"]


def test_generate_fails_one_row_whose_prompt_the_template_refuses(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    (tmp_path / "chat_template.jinja").write_text("{{ raise_exception('roles must alternate') }}")
    with pytest.raises(RowFailure, match="roles must alternate") as caught:
        make("sglang-generate", tokenizer=tmp_path).body(request())
    assert (caught.value.kind, caught.value.reason) == ("permanent", "chat_template")


@pytest.mark.parametrize(
    ("server", "path", "returns_ids", "supports_stream"),
    [
        ("vllm", "/v1/chat/completions", True, True),
        ("sglang", "/v1/chat/completions", True, False),
        ("sglang-generate", "/generate", True, True),
        ("openai", "/v1/chat/completions", False, True),
    ],
)
def test_what_a_dialect_is(server: str, path: str, returns_ids: bool, supports_stream: bool) -> None:
    speaker: Dialect = make(server)
    assert (speaker.name, speaker.path) == (server, path)
    assert (speaker.returns_ids, speaker.supports_stream) == (returns_ids, supports_stream)
