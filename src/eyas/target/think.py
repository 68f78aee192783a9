"""The tokens between which a target thinks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

MARKERS = (
    ("<think>", "</think>"),
    ("<thinking>", "</thinking>"),
    ("<seed:think>", "</seed:think>"),
    ("<|think_start|>", "<|think_end|>"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("◁think▷", "◁/think▷"),
    ("[THINK]", "[/THINK]"),
)
"""Start and end markers of known families, as named in their tokenizers."""


@dataclass(frozen=True)
class ThinkMarkers:
    """Ids of the markers; both None if the target does not think."""

    start_id: int | None
    end_id: int | None


def resolve_think(tokenizer: Any) -> ThinkMarkers:
    """The first known pair of which both are added tokens, that is, single ids whatever surrounds them."""
    added = tokenizer.get_added_vocab()
    for start, end in MARKERS:
        if start in added and end in added:
            return ThinkMarkers(int(added[start]), int(added[end]))
    return ThinkMarkers(None, None)
