"""Replies of real servers as data: one generated turn, in the form in which each server sends it.

The forms follow what the servers were seen to send: vLLM 0.32.0 and 0.11.1, SGLang 0.5.23 (chat and /generate),
transformers serve 5.19, an aggregator in the manner of OpenRouter, and the DeepSeek API. `*_events` gives the JSON
values of the stream's `data:` lines, without the `[DONE]` that `sse` puts at the end.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import Any

MODEL = "tiny"
START, END, END_OF_TURN = 3, 4, 2
"""Ids of <think>, </think> and the end of turn in these replies."""
PROMPT = [5, 6, 1, 520, 198]
OPENED_PROMPT = [*PROMPT, START]
"""A prompt that ends inside thinking."""

Cut = Callable[[Any], list[Any]]
"""Cuts a text or a list into pieces, in order and without loss."""

CALL = {"id": "functions.f:0", "type": "function", "function": {"name": "f", "arguments": '{"a": [1, 2]}'}}


@dataclass(frozen=True)
class Turn:
    """What a target generated, and how a server's parsers read it."""

    reasoning: str | None = "I think."
    content: str | None = "Answer."
    tool_calls: list[dict[str, Any]] | None = None
    text: str = "<think>I think.</think>Answer."
    """The generated text as a whole, without the end of turn."""
    prompt_ids: list[int] = field(default_factory=lambda: list(PROMPT))
    ids: list[int] = field(default_factory=lambda: [START, 70, 71, END, 80, 81, END_OF_TURN])
    finish_reason: str = "stop"
    stop_reason: int | str | None = None
    """A stop id or string other than the end of turn."""
    reasoning_tokens: int | None = 2

    @property
    def matched(self) -> int | str | None:
        """What stopped the turn, as SGLang says it."""
        if self.finish_reason == "length":
            return None
        return END_OF_TURN if self.stop_reason is None else self.stop_reason


THINKING = Turn()
PLAIN = Turn(None, "Answer.", None, "Answer.", ids=[80, 81, END_OF_TURN], reasoning_tokens=None)
CUT_THINKING = Turn(
    "I thi", None, None, "<think>I thi", ids=[START, 70, 72], finish_reason="length", reasoning_tokens=2
)
TOOL_CALL = Turn(
    "I think.",
    None,
    [CALL],
    "<think>I think.</think><tool_call>f</tool_call>",
    ids=[START, 70, 71, END, 90, 91, END_OF_TURN],
    finish_reason="tool_calls",
)
TURNS = {"thinking": THINKING, "plain": PLAIN, "cut in thinking": CUT_THINKING, "tool call": TOOL_CALL}


def unparsed(turn: Turn) -> Turn:
    """The turn as a server without a reasoning parser sends it."""
    return replace(turn, reasoning=None, content=turn.text, reasoning_tokens=None)


def by_three(sequence: Any) -> list[Any]:
    """Pieces of three."""
    return [sequence[start : start + 3] for start in range(0, len(sequence), 3)]


def sse(events: Iterable[Any], *, done: bool = True) -> bytes:
    """The body of a stream."""
    lines = [f"data: {json.dumps(event)}\n\n" for event in events]
    return "".join([*lines, *(["data: [DONE]\n\n"] if done else [])]).encode()


# --- vLLM ------------------------------------------------------------------------------------------------------------


def vllm(turn: Turn = THINKING, **changes: Any) -> dict[str, Any]:
    """vLLM 0.32.0, chat completion with `return_token_ids`. `changes` replace keys of the reply or its choice."""
    message: dict[str, Any] = {
        "role": "assistant",
        "content": turn.content,
        "refusal": None,
        "annotations": None,
        "audio": None,
        "function_call": None,
        "reasoning": turn.reasoning,
    }
    if turn.tool_calls:
        message["tool_calls"] = turn.tool_calls
    choice = {
        "index": 0,
        "message": message,
        "logprobs": None,
        "finish_reason": turn.finish_reason,
        "stop_reason": turn.stop_reason,
        "token_ids": turn.ids,
        "routed_experts": None,
    }
    reply = {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 0,
        "model": MODEL,
        "choices": [choice],
        "service_tier": None,
        "system_fingerprint": "vllm-0.32.0-tp1-0",
        "usage": _usage(turn) | {"prompt_tokens_details": None, "completion_tokens_details": _details(turn)},
        "prompt_logprobs": None,
        "prompt_token_ids": turn.prompt_ids,
        "prompt_text": None,
        "kv_transfer_params": None,
        "metrics": None,
    }
    for key, value in changes.items():
        (choice if key in choice else reply)[key] = value
    return reply


def vllm_0_11_1(turn: Turn = THINKING) -> dict[str, Any]:
    """vLLM 0.11.1 to 0.15: the reasoning under both names."""
    reply = vllm(turn)
    reply["choices"][0]["message"]["reasoning_content"] = turn.reasoning
    return reply


def vllm_0_11_0(turn: Turn = THINKING) -> dict[str, Any]:
    """vLLM up to 0.11.0: the reasoning as `reasoning_content`."""
    reply = vllm_0_11_1(turn)
    del reply["choices"][0]["message"]["reasoning"]
    return reply


def vllm_events(
    turn: Turn = THINKING,
    cut: Cut = by_three,
    *,
    fields: Sequence[str] = ("reasoning",),
    usage_last: bool = True,
) -> list[dict[str, Any]]:
    """vLLM 0.32.0 as a stream: prompt ids in the first chunk, ids of the delta in each, usage in one of its own."""
    head = _chunk({"role": "assistant", "content": ""}) | {"prompt_token_ids": turn.prompt_ids}
    deltas = _deltas(turn, cut, fields)
    pieces = [list(piece) for piece in cut(turn.ids)] or [[]]
    events = [head]
    for delta, ids in zip_longest(deltas, pieces):
        events.append(_chunk(delta or {}, token_ids=ids or []))
    events[-1]["choices"][0] |= {"finish_reason": turn.finish_reason, "stop_reason": turn.stop_reason}
    if usage_last:
        events.append(_chunk(None) | {"usage": _usage(turn) | {"completion_tokens_details": _details(turn)}})
    return events


# --- SGLang ----------------------------------------------------------------------------------------------------------


def sglang(turn: Turn = THINKING, **changes: Any) -> dict[str, Any]:
    """SGLang 0.5.23, chat completion with `return_token_ids`: ids in the choice, no null content."""
    choice = {
        "index": 0,
        "message": {
            "role": "assistant",
            "content": turn.content or "",
            "reasoning_content": turn.reasoning,
            **({"tool_calls": turn.tool_calls} if turn.tool_calls else {}),
        },
        "logprobs": None,
        "finish_reason": turn.finish_reason,
        "matched_stop": turn.matched,
        "prompt_token_ids": turn.prompt_ids,
        "response_token_ids": turn.ids,
    }
    reply = {
        "id": "7",
        "object": "chat.completion",
        "created": 0,
        "model": MODEL,
        "choices": [choice],
        "usage": _sglang_usage(turn),
        "metadata": {"weight_version": "default", "weight_versions": _weight_versions(turn)},
    }
    for key, value in changes.items():
        (choice if key in choice else reply)[key] = value
    return reply


def sglang_events(turn: Turn = THINKING, cut: Cut = by_three) -> list[dict[str, Any]]:
    """SGLang 0.5.23 chat as a stream, which has no ids."""
    events = [_chunk({"role": "assistant", "content": "", "reasoning_content": None})]
    events += [_chunk(delta) for delta in _deltas(turn, cut, ("reasoning_content",))]
    last = {"reasoning_content": None}
    events.append(_chunk(last, finish_reason=turn.finish_reason, matched_stop=turn.matched))
    return [*events, _chunk(None) | {"usage": _sglang_usage(turn)}]


def sglang_generate(turn: Turn = THINKING, **changes: Any) -> dict[str, Any]:
    """SGLang's own /generate of 0.5.23, which counts no reasoning. `changes` replace keys of the reply or of its
    `meta_info`."""
    meta: dict[str, Any] = {
        "id": "a:1#0",
        "finish_reason": _finish_object(turn),
        "prompt_tokens": len(turn.prompt_ids),
        "weight_version": "default",
        "num_retractions": 0,
        "reasoning_tokens": 0,
        "completion_tokens": len(turn.ids),
        "cached_tokens": 0,
        "weight_versions": _weight_versions(turn),
        "cached_tokens_details": None,
        "dp_rank": None,
        "e2e_latency": 0.1,
    }
    reply: dict[str, Any] = {"text": turn.text, "output_ids": turn.ids, "meta_info": meta}
    for key, value in changes.items():
        (meta if key in meta else reply)[key] = value
    return reply


def sglang_generate_events(
    turn: Turn = THINKING, cut: Cut = by_three, *, incremental: bool = False
) -> list[dict[str, Any]]:
    """The same as a stream: cumulative, or only what is new (`--incremental-streaming-output`)."""
    texts, pieces = cut(turn.text) or [""], [list(piece) for piece in cut(turn.ids) if piece]
    texts = [*texts[: len(pieces) - 1], "".join(texts[len(pieces) - 1 :])]  # no text comes without ids
    events, text, ids = [], "", list[int]()
    for new_text, new_ids in zip_longest(texts, pieces):
        text, ids = text + (new_text or ""), ids + new_ids
        event = sglang_generate(turn, finish_reason=None, completion_tokens=len(ids))
        event |= (
            {"text": new_text or "", "output_ids": new_ids}
            if incremental
            else {"text": text, "output_ids": ids}
        )
        events.append(event)
    events[-1]["meta_info"]["finish_reason"] = _finish_object(turn)
    return events


SGLANG_ABORT = {
    "text": "",
    "output_ids": [],
    "meta_info": {"finish_reason": {"type": "abort", "message": "drained", "status_code": 503}},
}
SGLANG_ABORTED_BY_HAND = {"type": "abort", "message": "Aborted", "status_code": None, "err_type": None}
"""Finish reason behind half an answer, with status 200: SGLang 0.5.23 after POST /abort_request. In chat: "abort"."""


# --- servers without ids ---------------------------------------------------------------------------------------------


def transformers_serve(turn: Turn = THINKING) -> dict[str, Any]:
    """transformers serve 5.19: no reasoning parser, no ids, no stop reason."""
    message = {"role": "assistant", "content": turn.text}
    return {
        "id": "1",
        "object": "chat.completion",
        "created": 0,
        "model": MODEL,
        "choices": [{"index": 0, "finish_reason": turn.finish_reason, "message": message}],
        "usage": _usage(turn),
    }


def transformers_serve_events(turn: Turn = THINKING, cut: Cut = by_three) -> list[dict[str, Any]]:
    """The same as a stream: nulls left out, usage in the chunk with the finish reason, and no `[DONE]` behind it."""
    events = [_chunk({"role": "assistant"})]
    events += [_chunk({"content": piece}) for piece in cut(turn.text)]
    last = _chunk({}, finish_reason=turn.finish_reason) | {"usage": _usage(turn)}
    return [*events, last]


def openrouter(turn: Turn = THINKING) -> dict[str, Any]:
    """An aggregator: `reasoning` and `reasoning_details`, the provider's own finish reason besides."""
    details = [{"type": "reasoning.text", "text": turn.reasoning, "format": "unknown", "index": 0}]
    message = {
        "role": "assistant",
        "content": turn.content or "",
        "refusal": None,
        "reasoning": turn.reasoning,
        "reasoning_details": details if turn.reasoning else [],
        **({"tool_calls": turn.tool_calls} if turn.tool_calls else {}),
    }
    choice = {
        "logprobs": None,
        "finish_reason": turn.finish_reason,
        "native_finish_reason": "eos",
        "index": 0,
        "message": message,
    }
    usage = _usage(turn) | {"completion_tokens_details": {"reasoning_tokens": turn.reasoning_tokens}}
    return {"id": "gen-1", "provider": "Some", "model": MODEL, "choices": [choice], "usage": usage}


def openrouter_events(turn: Turn = THINKING, cut: Cut = by_three) -> list[dict[str, Any]]:
    """The same as a stream; `content` is an empty text beside reasoning."""
    events = []
    for delta in _deltas(turn, cut, ("reasoning",)):
        details = [{"type": "reasoning.text", "text": delta["reasoning"]}] if "reasoning" in delta else []
        events.append(_chunk({"role": "assistant", "content": ""} | delta | {"reasoning_details": details}))
    events.append(_chunk({"role": "assistant", "content": ""}, finish_reason=turn.finish_reason))
    usage = _usage(turn) | {"completion_tokens_details": {"reasoning_tokens": turn.reasoning_tokens}}
    return [*events, _chunk({"role": "assistant", "content": ""}) | {"usage": usage}]


OPENROUTER_ERROR = {
    "id": "gen-1",
    "choices": [],
    "error": {"code": 502, "message": "Provider returned error"},
}
"""Inside a stream or a body with status 200."""


def deepseek(turn: Turn = THINKING) -> dict[str, Any]:
    """DeepSeek's API."""
    message: dict[str, Any] = {"role": "assistant", "content": turn.content or ""}
    message["reasoning_content"] = turn.reasoning
    message |= {"tool_calls": turn.tool_calls} if turn.tool_calls else {}
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": turn.finish_reason}
    usage = _usage(turn) | {"completion_tokens_details": {"reasoning_tokens": turn.reasoning_tokens}}
    return {"id": "1", "object": "chat.completion", "model": MODEL, "choices": [choice], "usage": usage}


def deepseek_events(turn: Turn = THINKING, cut: Cut = by_three) -> list[dict[str, Any]]:
    """The same as a stream: an empty reasoning in the first chunk, null for the other text, usage null until the last."""
    events = [_chunk({"role": "assistant", "content": None, "reasoning_content": ""}) | {"usage": None}]
    empty = {"content": None, "reasoning_content": None}
    events += [
        _chunk(empty | delta) | {"usage": None} for delta in _deltas(turn, cut, ("reasoning_content",))
    ]
    last = _chunk({"content": "", "reasoning_content": None}, finish_reason=turn.finish_reason)
    details = {"reasoning_tokens": turn.reasoning_tokens}
    return [*events, last | {"usage": _usage(turn) | {"completion_tokens_details": details}}]


# --- errors ----------------------------------------------------------------------------------------------------------

CONTEXT_MESSAGE = (
    "This model's maximum context length is 4096 tokens. However, you requested 5000 tokens in the messages."
)
ERRORS: dict[str, tuple[Any, str, str]] = {
    "vLLM 400": (
        {"error": {"message": "bad", "type": "BadRequestError", "code": 400}},
        "permanent",
        "http_400",
    ),
    "older vLLM, SGLang 400": ({"object": "error", "message": "bad", "code": 400}, "permanent", "http_400"),
    "context": ({"error": {"message": CONTEXT_MESSAGE, "code": 400}}, "permanent", "context_length"),
    "context by name": (
        {"error": {"message": "too long for the context length", "code": "context_length_exceeded"}},
        "permanent",
        "context_length",
    ),
    "in band 502": (OPENROUTER_ERROR, "transient", "http_502"),
    "SGLang /generate in a stream": (
        {
            "error": {
                "message": "bad",
                "type": "invalid_request_error",
                "code": 400,
                "retryable": False,
            }
        },
        "permanent",
        "http_400",
    ),
    "in band 400": ({"choices": [], "error": {"code": 400, "message": "x"}}, "permanent", "http_400"),
    "in band 429": ({"error": {"code": 429, "message": "slow"}}, "transient", "http_429"),
    "code as text": ({"error": {"code": "503", "message": "busy"}}, "transient", "http_503"),
    "code as a word": (
        {"error": {"code": "rate_limit_exceeded", "message": "slow"}},
        "transient",
        "http_429",
    ),
    "type as a word": ({"error": {"type": "invalid_request_error", "message": "x"}}, "permanent", "http_400"),
    "text": ({"error": "boom"}, "transient", "error_in_reply"),
    "a vendor's number": ({"error": {"code": 1301, "message": "x"}}, "transient", "error_in_reply"),
    "in the choice": (
        {"choices": [{"index": 0, "error": {"code": 504, "message": "late"}, "finish_reason": "error"}]},
        "transient",
        "http_504",
    ),
}
"""Error bodies that come with status 200, with the kind and the reason that they stand for."""


# --- parts -----------------------------------------------------------------------------------------------------------


def _usage(turn: Turn) -> dict[str, Any]:
    prompt, completion = len(turn.prompt_ids), len(turn.ids)
    return {"prompt_tokens": prompt, "total_tokens": prompt + completion, "completion_tokens": completion}


def _details(turn: Turn) -> dict[str, Any] | None:
    return None if turn.reasoning_tokens is None else {"reasoning_tokens": turn.reasoning_tokens}


def _sglang_usage(turn: Turn) -> dict[str, Any]:
    """Counts of SGLang's chat endpoint: details are null where there was no reasoning."""
    details = _details(turn) if turn.reasoning_tokens else None
    return _usage(turn) | {
        "prompt_tokens_details": None,
        "reasoning_tokens": turn.reasoning_tokens or 0,
        "completion_tokens_details": details,
    }


def _weight_versions(turn: Turn) -> list[dict[str, Any]]:
    return [{"version": "default", "start": 0, "end": len(turn.ids)}]


def _chunk(delta: dict[str, Any] | None, **choice: Any) -> dict[str, Any]:
    chunk = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 0, "model": MODEL}
    choices = [] if delta is None else [{"index": 0, "delta": delta, "finish_reason": None, **choice}]
    return chunk | {"choices": choices}


def _deltas(turn: Turn, cut: Cut, fields: Sequence[str]) -> list[dict[str, Any]]:
    deltas: list[dict[str, Any]] = [dict.fromkeys(fields, piece) for piece in cut(turn.reasoning or "")]
    deltas += [{"content": piece} for piece in cut(turn.content or "")]
    for index, call in enumerate(turn.tool_calls or []):
        head = {"index": index, "id": call["id"], "type": call["type"]}
        name = {"name": call["function"]["name"], "arguments": ""}
        deltas.append({"tool_calls": [head | {"function": name}]})
        for piece in cut(call["function"]["arguments"]):
            deltas.append({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
    return deltas


def _finish_object(turn: Turn) -> dict[str, Any]:
    if turn.finish_reason == "length":
        return {"type": "length", "length": len(turn.ids)}
    return {"type": "stop", "matched": turn.matched}
