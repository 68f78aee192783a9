"""The part of a chat completion request that every server understands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from eyas.generate.params import GenerateParams
from eyas.generate.request import ChatRequest, Message

CHAT_PATH = "/v1/chat/completions"


def chat_body(request: ChatRequest, model: str, params: GenerateParams) -> dict[str, Any]:
    """Standard keys of POST /v1/chat/completions, and `chat_template_kwargs` if there are any."""
    body: dict[str, Any] = {
        "model": model,
        "messages": sent_messages(request.messages),
        "stream": params.stream,
        "temperature": params.temperature,
        "top_p": params.top_p,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "max_tokens": params.max_tokens,
    }
    if params.stream:
        body["stream_options"] = {"include_usage": True}
    if request.seed is not None:
        body["seed"] = request.seed
    if request.tools:
        body["tools"] = list(request.tools)
    if params.chat_template_kwargs:
        body["chat_template_kwargs"] = dict(params.chat_template_kwargs)
    return body


def sent_messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Messages as servers read them: earlier thinking as `reasoning_content`.

    SGLang knows no other name, and vLLM gives it to the template under both.
    """
    return [_sent(message) for message in messages]


def _sent(message: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "reasoning_content" if key == "reasoning" else key: value
        for key, value in message.items()
        if value is not None
    }
