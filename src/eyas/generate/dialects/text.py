"""Characters that came in halves."""

from __future__ import annotations


def join_surrogates(text: str) -> str:
    r"""Halves of one character put together: a stream may cut between `\ud83d` and `\ude00`."""
    if text.isascii():
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
