"""SGLang's own /generate: asked with the ids of a prompt that is rendered here, answered with ids."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from eyas.errors import InputError
from eyas.generate.dialects import endings
from eyas.generate.dialects.events import GenerateCollector
from eyas.generate.dialects.ids import read_ids
from eyas.generate.dialects.message import read_message
from eyas.generate.dialects.reader import Found, Reader
from eyas.generate.dialects.sglang import NO_LIMIT
from eyas.generate.dialects.usage import read_usage
from eyas.generate.failure import content, permanent, refuse_error, transient
from eyas.generate.params import GenerateParams
from eyas.generate.record import Answer
from eyas.generate.request import ChatRequest
from eyas.target.spec import TargetProfile
from eyas.target.template import render_prompt


class SglangGenerateDialect:
    """Ids and text of every answer, streaming or not.

    The server's parsers take no part: thinking is divided off here, and tool calls stay in the text.
    """

    name = "sglang-generate"
    path = "/generate"
    returns_ids = True
    supports_stream = True

    def __init__(self, params: GenerateParams, profile: TargetProfile, tokenizer_dir: Path) -> None:
        self._params = params
        self._profile = profile
        self._tokenizer_dir = tokenizer_dir
        self._reader = Reader(
            profile.think, profile.tools, params.chat_template_kwargs, params.max_tokens, parses=False
        )

    def body(self, request: ChatRequest) -> dict[str, Any]:
        return {  # no `rid`: the body of a retry is the same, and an id that is still in flight is refused
            "input_ids": self._prompt_ids(request),
            "sampling_params": self._sampling(request),
            "stream": self._params.stream,
            "return_logprob": False,
        }

    def read(self, reply: Any, request: ChatRequest) -> Answer:
        return self._read(reply, request, streamed=False)

    def collector(self, request: ChatRequest) -> GenerateCollector:
        return GenerateCollector(lambda reply: self._read(reply, request, streamed=True))

    def _sampling(self, request: ChatRequest) -> dict[str, Any]:
        sampling: dict[str, Any] = {
            "n": 1,
            "max_new_tokens": self._params.max_tokens,
            "min_new_tokens": 0,
            "temperature": self._params.temperature,
            "top_p": self._params.top_p,
            "top_k": self._params.top_k or NO_LIMIT,
            "min_p": 0.0,
            "repetition_penalty": 1.0,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "stop_token_ids": list(self._profile.end_of_turn_ids),
            "skip_special_tokens": False,
            "spaces_between_special_tokens": False,
            "no_stop_trim": False,
        }
        if request.seed is not None:
            sampling["sampling_seed"] = request.seed
        return sampling

    def _prompt_ids(self, request: ChatRequest) -> list[int]:
        try:
            return render_prompt(
                self._tokenizer_dir,
                request.messages,
                self._params.chat_template_kwargs,
                tools=request.tools,
                trust_remote_code=self._profile.trust_remote_code,
            )
        except InputError as error:
            raise permanent("chat_template", error.what) from error

    def _read(self, reply: Any, request: ChatRequest, *, streamed: bool) -> Answer:
        if not isinstance(reply, Mapping):
            raise transient("not_an_object", f"the reply is {type(reply).__name__}, not an object")
        refuse_error(reply)
        meta = reply.get("meta_info")
        if not isinstance(meta, Mapping):
            raise transient("no_message", "the reply has no meta_info")
        ended = meta.get("finish_reason")
        reason = endings.finish_reason(ended)
        ids = read_ids(reply.get("output_ids"), "output_ids")
        matched = ended.get("matched") if isinstance(ended, Mapping) else None
        _check_stop_id(matched, ids)
        found = Found(
            model=None,
            message=read_message({"content": reply.get("text")}),
            finish_reason=reason,
            stop_reason=endings.stop_reason(matched, self._profile.end_of_turn_ids),
            usage=read_usage(meta),
            prompt_token_ids=self._prompt_ids(request),
            token_ids=ids,
            streamed=streamed,
        )
        return self._reader.answer(found, request)


def _check_stop_id(matched: Any, ids: list[int]) -> None:
    """The id that stopped the answer is part of it; servers trim it from the text only."""
    if isinstance(matched, int) and ids[-1:] != [matched]:
        last = ids[-1] if ids else None
        raise content("stop_id_missing", f"stopped by id {matched}, but the last of output_ids is {last}")
