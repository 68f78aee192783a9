"""SGLang's chat completions with `return_token_ids`, which it refuses together with streaming."""

from __future__ import annotations

from typing import Any

from eyas.errors import ConfigError
from eyas.generate.dialects.base import Collector
from eyas.generate.dialects.chat import CHAT_PATH, chat_body
from eyas.generate.dialects.completion import IdFields, read_completion
from eyas.generate.dialects.reader import Reader
from eyas.generate.params import GenerateParams
from eyas.generate.record import Answer
from eyas.generate.request import ChatRequest
from eyas.target.spec import TargetProfile

ID_FIELDS = IdFields(prompt="prompt_token_ids", prompt_in="choice", generated="response_token_ids")
NO_LIMIT = -1
"""SGLang's word for a `top_k` without limit; it refuses 0."""


class SglangDialect:
    """Ids and text of every answer, in one piece."""

    name = "sglang"
    path = CHAT_PATH
    returns_ids = True
    supports_stream = False

    def __init__(self, params: GenerateParams, profile: TargetProfile) -> None:
        """Raises ConfigError for `generate.stream: true`."""
        if params.stream:
            raise _no_stream()
        self._params = params
        self._profile = profile
        self._reader = Reader(profile.think, profile.tools, params.chat_template_kwargs, params.max_tokens)

    def body(self, request: ChatRequest) -> dict[str, Any]:
        return chat_body(request, self._profile.name, self._params) | {
            "n": 1,
            "top_k": self._params.top_k or NO_LIMIT,
            "min_p": 0.0,
            "repetition_penalty": 1.0,
            "min_tokens": 0,
            "return_token_ids": True,
            "skip_special_tokens": False,
            "separate_reasoning": True,
        }

    def read(self, reply: Any, request: ChatRequest) -> Answer:
        found = read_completion(reply, ID_FIELDS, self._profile.end_of_turn_ids)
        return self._reader.answer(found, request)

    def collector(self, request: ChatRequest) -> Collector:
        raise _no_stream()


def _no_stream() -> ConfigError:
    return ConfigError(
        "generate.stream is true, but SGLang's chat endpoint gives token ids only without streaming",
        where="params.yaml",
        hint="set generate.stream to false, or use dialect sglang-generate",
    )
