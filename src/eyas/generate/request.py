"""What is asked, and the key under which its answer is kept."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from eyas.generate.params import GenerateParams
from eyas.hashing import canonical_json, digest
from eyas.target.spec import TargetProfile

FORMAT_VERSION = 3
"""Raise it when requests or the reading of replies change in a way that changes answers: all prompts are asked again."""

Message = Mapping[str, Any]
"""A message as stored: `role`, `content`, `reasoning`, `tool_calls`, `tool_call_id`; keys that are null are left out."""


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """One turn to ask for. The JSON body is made by the dialect when it is sent: pending rows are many."""

    sample_id: str
    turn: int
    """Which generated turn of its conversation this is, from 0."""
    key: str
    """SHA-256 (hex) of everything that decides the answer."""
    messages: Sequence[Message]
    tools: Sequence[Mapping[str, Any]] | None
    """The tools that the target may call, in OpenAI's form."""
    seed: int | None
    """Null where sampling is greedy."""

    @property
    def length(self) -> int:
        """Characters of all messages; a stand-in for tokens."""
        return sum(len(message.get("content") or "") for message in self.messages)


def fingerprint(profile: TargetProfile, params: GenerateParams) -> dict[str, Any]:
    """What all requests of a run have in common and what decides answers, in clear text.

    Not in it: the number of prompts, concurrency, retries, timeouts, address, gates, streaming: they change no answer.
    The think format is in it only where there are no ids, so that the texts, as they were divided, are all there is.
    """
    common: dict[str, Any] = {
        "format_version": FORMAT_VERSION,
        "dialect": params.dialect,
        "target": {"name": profile.name, "digest": profile.digest, "dtype": profile.dtype},
        "sampling": _sampling(params),
        "chat_template_kwargs": params.chat_template_kwargs,
    }
    if params.dialect == "openai" and profile.think is not None:
        common["think"] = [profile.think.start, profile.think.end, profile.think.prefilled]
    return common


def build(
    sample_id: str,
    messages: Sequence[Message],
    params: GenerateParams,
    fingerprint_digest: str,
    *,
    turn: int = 0,
    tools: Sequence[Mapping[str, Any]] | None = None,
) -> ChatRequest:
    """The request of one turn: `messages` hold all that stands before it, answers to earlier turns included.

    Neither sample_id nor turn is in the key: the same conversation in another place is the same question.
    """
    asked: dict[str, Any] = {"fingerprint": fingerprint_digest, "messages": messages}
    if tools:
        asked["tools"] = tools
    seed = row_seed(params.seed, messages) if params.temperature > 0 else None
    return ChatRequest(sample_id, turn, digest(asked), messages, tools or None, seed)


def row_seed(seed: int, messages: Sequence[Message]) -> int:
    """A 31-bit seed of these messages: the same in every run, whatever else the dataset holds."""
    return int.from_bytes(hashlib.sha256(canonical_json([seed, messages])).digest()[:4]) >> 1


def _sampling(params: GenerateParams) -> dict[str, Any]:
    sampling: dict[str, Any] = {
        "temperature": params.temperature,
        "top_p": params.top_p,
        "top_k": params.top_k,
        "max_tokens": params.max_tokens,
    }
    if params.temperature > 0:  # greedy decoding has no use for a seed
        sampling["seed"] = params.seed
    return sampling
