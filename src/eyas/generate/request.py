"""What is sent to the server, and the keys under which an answer is kept."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from eyas.generate.params import GenerateParams
from eyas.hashing import canonical_json, digest
from eyas.target.spec import TargetProfile

FORMAT_VERSION = 2
"""Raise it when the request body changes in a way that changes answers: all prompts are then asked again."""

_NEUTRAL = {
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "min_tokens": 0,
}
"""Sampling parameters that we do not use, at the values that change nothing (top_k: 0, see GenerateParams)."""

Message = Mapping[str, Any]


@dataclass(frozen=True)
class ChatRequest:
    """One prompt, ready to be sent."""

    sample_id: str
    key: str
    """SHA-256 (hex) of everything that decides the answer."""
    messages: Sequence[Message]
    body: Mapping[str, Any]
    """JSON body of POST /v1/chat/completions."""

    @property
    def length(self) -> int:
        """Characters of all messages; a stand-in for tokens."""
        return sum(len(message["content"]) for message in self.messages)


def fingerprint(profile: TargetProfile, params: GenerateParams) -> dict[str, Any]:
    """What all requests of a run have in common and what decides answers, in clear text.

    Not in it: the number of prompts, concurrency, retries, timeouts, address: they change no answer.
    """
    return {
        "format_version": FORMAT_VERSION,
        "dialect": params.dialect,
        "target": {"name": profile.name, "digest": profile.digest, "dtype": profile.dtype},
        "sampling": _sampling(params),
        "chat_template_kwargs": params.chat_template_kwargs,
    }


def build(
    sample_id: str,
    messages: Sequence[Message],
    profile: TargetProfile,
    params: GenerateParams,
    fingerprint_digest: str,
) -> ChatRequest:
    """The request of one prompt. Every sampling parameter is explicit: a server fills gaps from the model's files."""
    key = digest({"fingerprint": fingerprint_digest, "messages": messages})
    body = {
        "model": profile.name,
        "messages": messages,
        "n": 1,
        "stream": False,
        "temperature": params.temperature,
        "top_p": params.top_p,
        "top_k": params.top_k,
        "max_tokens": params.max_tokens,
        **_NEUTRAL,
        "return_token_ids": True,
        "skip_special_tokens": False,  # the text shows every token that the ids hold
        "spaces_between_special_tokens": False,  # vllm-project/vllm#33457: spaces that no token stands for
    }
    if params.temperature > 0:
        body["seed"] = row_seed(params.seed, messages)
    if params.chat_template_kwargs:
        body["chat_template_kwargs"] = dict(params.chat_template_kwargs)
    return ChatRequest(sample_id, key, messages, body)


def row_seed(seed: int, messages: Sequence[Message]) -> int:
    """A 31-bit seed of this prompt: the same in every run, whatever else the dataset holds."""
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
