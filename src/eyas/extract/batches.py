"""Which sequences are computed together, and which are held together until they are written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from eyas.extract.prefixes import MIN_SHARED, lexicographic, shared_length

BATCH_COST = 32
"""What a batch costs beside its tokens, in tokens."""


def plan_windows(sizes: Sequence[int], limit: int) -> list[range]:
    """Cut a list into runs of neighbours whose sizes (bytes) sum to at most `limit`; a larger one stands alone.

    The same rule as the writer's, so a window is a shard.
    """
    windows: list[range] = []
    start, total = 0, 0
    for index, size in enumerate(sizes):
        if index > start and total + size > limit:
            windows.append(range(start, index))
            start, total = index, 0
        total += size
    if len(sizes) > start:
        windows.append(range(start, len(sizes)))
    return windows


@dataclass(frozen=True)
class _Batch:
    """A run of neighbours in lexicographic order."""

    start: int
    stop: int
    tokens: int
    """That are computed."""
    cost: float
    """Tokens that its end costs, per token."""


def plan_batches(token_ids: Sequence[Sequence[int]], batch_tokens: int) -> list[list[int]]:
    """Group a window's sequences so that each batch computes at most `batch_tokens` tokens, the largest batch first.

    Packed sequences need no equal lengths. So neighbours in lexicographic order go together, which share most: the turns
    of a conversation, answers to the same prompt, prompts under the same system message. A batch ends where it costs
    least: full, or before it would tear such a group apart. The largest batch comes first, so that one that does not
    fit into memory fails at the start. A sequence longer than the budget is a batch of its own.

    Args:
        token_ids: of each sequence.
        batch_tokens: tokens that are computed, shared ones once.

    Returns:
        Indices of the sequences of each batch.
    """
    order = lexicographic(token_ids, range(len(token_ids)))
    lengths = [len(token_ids[index]) for index in order]
    links = _links([token_ids[index] for index in order])
    batches: list[_Batch] = []
    start = 0
    while start < len(order):
        found = _batches_from(start, lengths, links, batch_tokens)
        batches.append(min(found, key=lambda batch: batch.cost))
        start = batches[-1].stop
    batches.sort(key=lambda batch: (-batch.tokens, batch.start))
    return [order[batch.start : batch.stop] for batch in batches]


def _links(sequences: Sequence[Sequence[int]]) -> list[int]:
    """Tokens that each sequence shares with its predecessor."""
    shared = [shared_length(first, second) for first, second in pairwise(sequences)]
    return [0, *(count if count >= MIN_SHARED else 0 for count in shared)]


def _batches_from(start: int, lengths: Sequence[int], links: Sequence[int], limit: int) -> list[_Batch]:
    """The batches that begin at a sequence, the largest first."""
    found: list[_Batch] = []
    tokens = 0
    for at in range(start, len(lengths)):
        tokens += lengths[at] - (links[at] if at > start else 0)
        if at > start and tokens > limit:
            break
        lost = links[at + 1] if at + 1 < len(lengths) else -BATCH_COST  # the last batch ends anyway
        found.append(_Batch(start, at + 1, tokens, (BATCH_COST + lost) / tokens))
    return found[::-1]
