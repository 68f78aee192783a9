"""How attention of a packed batch is cut into chunks of queries, each over one sequence's slots.

Chunks are Python numbers, decided where the batch is packed: the device is never asked for a size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

CHUNK_CELLS = 128 * 1024
"""Scores of one chunk and head, at most, unless MIN_CHUNK queries alone are more: a few MB, so they stay in cache."""
MIN_CHUNK, MAX_CHUNK = 16, 256
"""Queries of a chunk."""


@dataclass(frozen=True)
class Chunk:
    """Consecutive anchors of one sequence, and the packed slots that they see."""

    anchor_start: int
    anchor_stop: int
    slot_start: int
    """The sequence's first slot."""
    slot_full: int
    """Slots before this one are visible to all anchors of the chunk."""
    slot_stop: int
    """One past the last anchor's slot: no anchor of the chunk sees this one."""


def plan_chunks(anchors: Sequence[Sequence[int]], slot_starts: Sequence[int]) -> tuple[Chunk, ...]:
    """The chunks of a batch.

    Args:
        anchors: each sequence's anchors, counted from its own first slot, ascending, at least one.
        slot_starts: each sequence's first packed slot.
    """
    chunks = []
    packed = 0
    for own, first in zip(anchors, slot_starts, strict=True):
        start = 0
        while start < len(own):
            stop = _stop(own, start)
            chunks.append(
                Chunk(
                    anchor_start=packed + start,
                    anchor_stop=packed + stop,
                    slot_start=first,
                    slot_full=first + own[start] + 1,
                    slot_stop=first + own[stop - 1] + 1,
                )
            )
            start = stop
        packed += len(own)
    return tuple(chunks)


def _stop(anchors: Sequence[int], start: int) -> int:
    """One past the last anchor of the chunk that begins at `start`: as many as fit, judged by its last slot."""
    stop = min(len(anchors), start + MAX_CHUNK)
    while stop - start > MIN_CHUNK and (stop - start) * (anchors[stop - 1] + 1) > CHUNK_CELLS:
        stop = start + max(MIN_CHUNK, min(stop - start - 1, CHUNK_CELLS // (anchors[stop - 1] + 1)))
    return stop
