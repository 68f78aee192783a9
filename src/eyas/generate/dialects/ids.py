"""Token ids of replies: their presence, and markers among them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from eyas.generate.failure import content

_LARGEST = 2**31 - 1


def read_ids(ids: Any, name: str) -> list[int]:
    """Ids that a dialect promises.

    Raises:
        RowFailure: there are none, or something else stands in their place.
    """
    if not isinstance(ids, list) or not all(type(token) is int and 0 <= token <= _LARGEST for token in ids):
        raise content("no_token_ids", f"the reply has no `{name}`, although the request asked for it")
    return ids


def count(ids: Sequence[int], marker: Sequence[int]) -> int:
    """How often a marker of one or several ids occurs."""
    if len(marker) == 1:
        return list(ids).count(marker[0])
    return sum(
        list(ids[start : start + len(marker)]) == list(marker)
        for start in range(len(ids) - len(marker) + 1)
        if marker
    )
