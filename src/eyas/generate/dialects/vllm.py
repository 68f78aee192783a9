"""vLLM's chat completions with `return_token_ids` (0.10.2 or later)."""

from __future__ import annotations

from typing import Any

from eyas.generate.dialects.chat import CHAT_PATH, chat_body
from eyas.generate.dialects.chunks import CompletionCollector
from eyas.generate.dialects.completion import IdFields, read_completion
from eyas.generate.dialects.reader import Reader
from eyas.generate.params import GenerateParams
from eyas.generate.record import Answer
from eyas.generate.request import ChatRequest
from eyas.target.spec import TargetProfile

ID_FIELDS = IdFields(prompt="prompt_token_ids", prompt_in="reply", generated="token_ids")


class VllmDialect:
    """Ids and text of every answer, streaming or not."""

    name = "vllm"
    path = CHAT_PATH
    returns_ids = True
    supports_stream = True

    def __init__(self, params: GenerateParams, profile: TargetProfile) -> None:
        self._params = params
        self._profile = profile
        self._reader = Reader(profile.think, profile.tools, params.chat_template_kwargs, params.max_tokens)

    def body(self, request: ChatRequest) -> dict[str, Any]:
        return chat_body(request, self._profile.name, self._params) | {
            "n": 1,
            "top_k": self._params.top_k,
            "min_p": 0.0,
            "repetition_penalty": 1.0,
            "min_tokens": 0,
            "return_token_ids": True,
            "skip_special_tokens": False,  # the text shows every token that the ids hold
            "spaces_between_special_tokens": False,  # vllm-project/vllm#33457: spaces that no token stands for
        }

    def read(self, reply: Any, request: ChatRequest) -> Answer:
        return self._read(reply, request, streamed=False)

    def collector(self, request: ChatRequest) -> CompletionCollector:
        return CompletionCollector(lambda reply: self._read(reply, request, streamed=True), ID_FIELDS)

    def _read(self, reply: Any, request: ChatRequest, *, streamed: bool) -> Answer:
        found = read_completion(reply, ID_FIELDS, self._profile.end_of_turn_ids, streamed=streamed)
        return self._reader.answer(found, request)
