"""Reading one generated turn through a dialect, as it would come from a server in one piece or as a stream."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from eyas.generate.dialects.base import Dialect
from eyas.generate.dialects.choice import dialect
from eyas.generate.record import Answer
from eyas.generate.request import ChatRequest, build
from eyas.target.spec import ThinkFormat
from tests.generate import replies
from tests.generate.example import generate_params, profile
from tests.generate.replies import Turn, by_three

MESSAGES = [{"role": "user", "content": "add one two"}]
THINK = ThinkFormat("derived", "<think>", "</think>", [replies.START], [replies.END], prefilled=False)
"""A target that generates its opening marker, like Qwen3."""
PREFILLED = ThinkFormat(
    "derived",
    "<think>",
    "</think>",
    [replies.START],
    [replies.END],
    prefilled=True,
    implicit_ends=["<tool_call>"],
    implicit_end_ids=[[90]],
    on_kwargs={"thinking": True},
    off_kwargs={"thinking": False},
)
"""A target whose template opens the thinking, and whose tool calls end it, like Kimi-K2.5."""

SERVERS = ("vllm", "openai")
"""With ids and without; both stream."""
MODES = ("whole", "stream")


def request(messages: list[dict[str, Any]] | None = None, **changes: Any) -> ChatRequest:
    return build("a:1", messages or MESSAGES, generate_params(), "0" * 64, **changes)


def make(
    server: str = "vllm",
    think: ThinkFormat | None = THINK,
    tokenizer: Path = Path("no-tokenizer"),
    **params: Any,
) -> Dialect:
    return dialect(generate_params(dialect=server, **params), profile(think=think), tokenizer)


def feed(speaker: Dialect, events: Iterable[Any], asked: ChatRequest, *, done: bool = True) -> Answer:
    """Collect a stream; the events go through JSON as they would on the wire."""
    collector = speaker.collector(asked)
    for event in events:
        collector.feed(json.loads(json.dumps(event)))
    return collector.answer(done)


def reply(server: str, turn: Turn) -> Any:
    whole = {
        "vllm": replies.vllm,
        "openai": replies.openrouter,
        "sglang": replies.sglang,
        "sglang-generate": replies.sglang_generate,
    }
    return whole[server](turn)


def events(server: str, turn: Turn, cut: replies.Cut = by_three) -> list[dict[str, Any]]:
    streams = {
        "vllm": replies.vllm_events,
        "openai": replies.openrouter_events,
        "sglang-generate": replies.sglang_generate_events,
    }
    return streams[server](turn, cut)


def read(
    server: str,
    mode: str,
    turn: Turn,
    think: ThinkFormat | None = THINK,
    messages: list[dict[str, Any]] | None = None,
    tokenizer: Path = Path("no-tokenizer"),
    **params: Any,
) -> Answer:
    """The answer that a run reads of this turn. A turn cut by length is cut by max_tokens."""
    if turn.finish_reason == "length":
        params.setdefault("max_tokens", len(turn.ids))
    speaker = make(server, think, tokenizer, stream=mode == "stream", **params)
    asked = request(messages)
    if mode == "stream":
        return feed(speaker, events(server, turn), asked)
    return speaker.read(reply(server, turn), asked)
