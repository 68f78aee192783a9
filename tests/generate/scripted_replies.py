"""What a scripted server replies: whole completions, their events when streamed, and faults."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from threading import Event
from typing import Any

MODEL = "tiny"
GENERATION_PROMPT = [1, 520, 198]
DONE = b"data: [DONE]\n\n"


@dataclass(frozen=True)
class Scripted:
    """One HTTP reply.

    A streaming request gets a JSON body of status 200 as events, as vLLM sends them; everything else as it is.
    """

    body: Any = None
    """JSON value, or bytes as they are."""
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    delay_s: float = 0.0
    hold: Event | None = None
    """Reply only once this is set."""
    reset: bool = False
    """Close the connection with a TCP reset instead of a reply."""
    cut: int | None = None
    """End the connection (TCP FIN) after so many bytes of the body."""
    chunks: Sequence[bytes] | None = None
    """The body in pieces, as an event stream of unknown length, whatever the request asks for."""
    pause_s: float = 0.0
    """Between pieces."""
    eof: bool = False
    """A streamed body ends with the connection (HTTP/1.0 style), so that a missing end can't be noticed by HTTP."""


Script = Callable[[str, int], Scripted]
"""(text of the last turn, number of this POST for it, from 1) -> reply. Must not block."""


def completion(prompt: str, *, message: Mapping[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    """A chat completion as vLLM 0.32 sends it. `changes` replace top-level keys, or those of the choice."""
    token_ids = [1000 + len(prompt), 7, 2]
    prompt_ids = [5, 6, *GENERATION_PROMPT]
    choice: dict[str, Any] = {
        "index": 0,
        "message": {
            "role": "assistant",
            "content": f"answer to {prompt}",
            "reasoning": None,
            **(message or {}),
        },
        "logprobs": None,
        "finish_reason": "stop",
        "stop_reason": None,
        "token_ids": token_ids,
    }
    reply: dict[str, Any] = {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "model": MODEL,
        "choices": [choice],
        "usage": {"prompt_tokens": len(prompt_ids), "total_tokens": 8, "completion_tokens": len(token_ids)},
        "prompt_token_ids": prompt_ids,
    }
    for key, value in changes.items():
        (choice if key in choice else reply)[key] = value
    return reply


def events(reply: Mapping[str, Any]) -> list[bytes]:
    """The same reply as vLLM 0.32 streams it: role, each text in two deltas, the finish, usage, [DONE]."""
    if not reply.get("choices"):
        return [_event(reply), DONE]
    choice = reply["choices"][0]
    head = {"id": reply["id"], "object": "chat.completion.chunk", "model": reply["model"]}

    def chunk(delta: Mapping[str, Any], finish: Any = None, **more: Any) -> dict[str, Any]:
        piece = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish, "stop_reason": None}
        return head | {"choices": [piece | more]}

    ids = choice.get("token_ids")
    first = chunk({"role": "assistant", "content": ""})
    found = [first | {"prompt_token_ids": reply["prompt_token_ids"]}]
    deltas = [
        {name: part}
        for name, text in choice["message"].items()
        if name != "role" and text
        for part in ([text[: len(text) // 2], text[len(text) // 2 :]] if isinstance(text, str) else [text])
    ]
    for place, delta in enumerate(deltas):
        found.append(chunk(delta, token_ids=None if ids is None else ids[place : place + 1]))
    last = chunk({}, choice["finish_reason"], token_ids=None if ids is None else ids[len(deltas) :])
    last["choices"][0]["stop_reason"] = choice["stop_reason"]
    found.append(last)
    if reply.get("usage") is not None:
        found.append(head | {"choices": [], "usage": reply["usage"]})
    return [*(_event(value) for value in found), DONE]


def answer(prompt: str, number: int) -> Scripted:
    """The script of a server without faults."""
    return Scripted(completion(prompt))


def faulty(seed: int, share: float, delay_s: float) -> Script:
    """So large a share of the POSTs meets a fault of some kind; the rest is answered."""
    chance = random.Random(seed)

    def fault(prompt: str) -> Scripted:
        whole = events(completion(prompt))
        return chance.choice(
            [
                Scripted({"error": {"message": "slow down"}}, status=429),
                Scripted({"error": {"message": "slow down"}}, status=429, headers={"Retry-After": "0.1"}),
                Scripted({"error": {"message": "The request queue is full."}}, status=503),
                Scripted(reset=True),
                Scripted(completion(prompt), cut=chance.randrange(400)),
                Scripted(chunks=whole[: chance.randrange(1, len(whole) - 2)], eof=True),
                Scripted(b""),
                Scripted(b"\n\n"),
                Scripted(completion(prompt, finish_reason="abort")),
                Scripted({"choices": [], "error": {"code": 502, "message": "x"}}),
                Scripted(b"<html>busy</html>"),
                Scripted({"error": {"message": "boom"}}, status=500),
            ]
        )

    def script(prompt: str, number: int) -> Scripted:
        delay = {"delay_s": delay_s * chance.uniform(0.5, 1.5)}
        made = fault(prompt) if chance.random() < share else Scripted(completion(prompt))
        return Scripted(**{**vars(made), **delay})

    return script


def _event(value: Any) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"
