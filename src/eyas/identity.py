"""When two prompts are the same prompt."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Mapping
from typing import Any

from eyas.hashing import digest

_INVISIBLE = dict.fromkeys((0xFEFF, 0x200B))  # byte order mark, zero-width space


def prompt_hash(messages: Iterable[Mapping[str, Any]]) -> str:
    """SHA-256 (hex) of a conversation's user turns, each normalised.

    Only what a user asked counts: two conversations with other system messages or answers between the same
    questions are one prompt, so that they never end up on both sides of a split.
    """
    return digest([normalised(turn["content"]) for turn in messages if turn["role"] == "user"])


def normalised(text: str) -> str:
    """Text without the differences that do not make another prompt: Unicode form, case, white space."""
    if not text.isascii():
        text = unicodedata.normalize("NFKC", text).translate(_INVISIBLE)
    return " ".join(text.lower().split())
