"""How much a busy server may have in flight: halved when it refuses, raised by one per window of successes."""

from __future__ import annotations

import math


class Window:
    """Additive increase, multiplicative decrease (as RFC 5681 for TCP). Unlimited until the first refusal."""

    def __init__(self) -> None:
        self._size = math.inf
        self._cut_at = -math.inf

    def limit(self, share: int) -> int:
        """Most requests in flight: at least 1, never more than the share."""
        return max(1, int(min(self._size, share)))

    def cut(self, share: int, started: float, now: float) -> bool:
        """Halve the window, because a request that was sent at `started` was refused.

        One cut per round trip: refusals of requests that were on their way before the last cut say nothing new, and
        the result is False.
        """
        if started < self._cut_at:
            return False
        self._size = max(1.0, min(self._size, share) / 2)
        self._cut_at = now
        return True

    def grow(self, share: int) -> None:
        """A success: a window full of them adds one. At the whole share the limit is gone."""
        self._size += 1 / self._size
        if self._size >= share:
            self._size = math.inf
