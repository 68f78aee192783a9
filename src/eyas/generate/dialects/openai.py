"""Any other OpenAI-compatible server: text only, standard keys only."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from eyas.errors import ConfigError
from eyas.generate.dialects.chat import CHAT_PATH, chat_body
from eyas.generate.dialects.chunks import CompletionCollector
from eyas.generate.dialects.completion import read_completion
from eyas.generate.dialects.length import LengthCheck
from eyas.generate.dialects.reader import Reader
from eyas.generate.params import GenerateParams
from eyas.generate.record import Answer
from eyas.generate.request import ChatRequest
from eyas.target.spec import TargetProfile


class OpenAIDialect:
    """Text of every answer, streaming or not; servers refuse keys that they do not know."""

    name = "openai"
    path = CHAT_PATH
    returns_ids = False
    supports_stream = True

    def __init__(self, params: GenerateParams, profile: TargetProfile, tokenizer_dir: Path) -> None:
        """A folder without a tokenizer leaves the check of text lengths out.

        Raises:
            ConfigError: a sampling parameter is set that these servers have no key for.
        """
        if params.top_k:
            raise ConfigError(
                f"generate.top_k is {params.top_k}, which dialect openai has no key for",
                where="params.yaml",
                hint="set generate.top_k to 0, or use a server with a dialect of its own",
            )
        self._params = params
        self._profile = profile
        check = LengthCheck(tokenizer_dir, profile.think, trust_remote_code=profile.trust_remote_code)
        self._reader = Reader(
            profile.think,
            profile.tools,
            params.chat_template_kwargs,
            params.max_tokens,
            more_flags=check.flags if any(tokenizer_dir.glob("tokenizer*")) else None,
        )

    def body(self, request: ChatRequest) -> dict[str, Any]:
        return chat_body(request, self._profile.name, self._params)

    def read(self, reply: Any, request: ChatRequest) -> Answer:
        return self._read(reply, request, streamed=False)

    def collector(self, request: ChatRequest) -> CompletionCollector:
        return CompletionCollector(lambda reply: self._read(reply, request, streamed=True), None)

    def _read(self, reply: Any, request: ChatRequest, *, streamed: bool) -> Answer:
        found = read_completion(reply, None, self._profile.end_of_turn_ids, streamed=streamed)
        return self._reader.answer(found, request)
