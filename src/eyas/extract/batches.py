"""Which sequences are computed together, and which are held together until they are written."""

from __future__ import annotations

from collections.abc import Sequence

BUSY_SHARE = 0.25
"""Share of the token budget from which a larger batch gains less than its padding costs."""
MAX_PADDING = 0.1
"""Largest share of padding of a sequence that joins a busy batch."""


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


def plan_batches(lengths: Sequence[int], window: Sequence[int], batch_tokens: int) -> list[list[int]]:
    """Group a window's sequences, the longest first, so that each padded batch has at most `batch_tokens` tokens.

    Sorted by length, so there is little padding, and a batch that does not fit into memory fails at the start. A batch
    large enough to keep the processor busy takes no sequence that would be padded by more than MAX_PADDING. A
    sequence longer than the budget is a batch of its own.
    """
    batches: list[list[int]] = []
    longest = 0
    for index in sorted(window, key=lambda number: (-lengths[number], number)):
        tokens = len(batches[-1]) * longest if batches else 0
        busy = tokens >= batch_tokens * BUSY_SHARE
        much_shorter = lengths[index] < (1 - MAX_PADDING) * longest
        if batches and tokens + longest <= batch_tokens and not (busy and much_shorter):
            batches[-1].append(index)
        else:
            batches.append([index])
            longest = lengths[index]
    return batches
