"""When to try again, and for how long: exponential back-off with jitter, Retry-After, and a row's patience."""

from __future__ import annotations

import math
import random
import time
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

_RANDOM = random.SystemRandom()  # clients started together must not retry together


def backoff_s(failures: int, base_s: float = 1.0, limit_s: float = 60.0) -> float:
    """Seconds to wait after so many failures in a row: base, 2 base, 4 base, ... each shortened by up to half."""
    doublings = min(failures - 1, 64)  # a server may be down for days
    longest: float = min(limit_s, base_s * 2.0**doublings)
    return longest * _RANDOM.uniform(0.5, 1.0)


def retry_after_s(header: str | None, now: datetime | None = None, limit_s: float = 600.0) -> float | None:
    """Seconds that a Retry-After header asks for, given as seconds or as an HTTP date (RFC 9110, 10.2.3).

    None if there is no readable header; never more than `limit_s`.
    """
    if not header:
        return None
    try:
        seconds = float(header)
    except ValueError:
        try:
            moment = parsedate_to_datetime(header)
        except (ValueError, OverflowError):
            return None
        moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        seconds = (moment - (now or datetime.now(UTC))).total_seconds()
    return None if math.isnan(seconds) else min(max(seconds, 0.0), limit_s)


class Patience:
    """What may still be spent on one row."""

    def __init__(self, max_attempts: int, give_up_after_s: float, backoff_base_s: float = 1.0) -> None:
        self.pause_s = 0.0
        """How long this row waits before it is tried again; a server's pause comes on top."""
        self._spent = 0
        self._max_attempts = max_attempts
        self._give_up_after_s = give_up_after_s
        self._backoff_base_s = backoff_base_s
        self._refused_since: float | None = None

    def spend(self, retry_after_s: float | None = None) -> bool:
        """An attempt failed by the row's own fault; whether it was the last."""
        self._spent += 1
        self._refused_since = None
        self.pause_s = max(backoff_s(self._spent, self._backoff_base_s), retry_after_s or 0.0)
        return self._spent >= self._max_attempts

    def spare(self) -> bool:
        """The server was down: that costs the row nothing, and is never its end."""
        self._refused_since = None
        self.pause_s = 0.0
        return False

    def refused(self, succeeded_at: float) -> bool:
        """A busy server has refused the row; whether that has gone on for too long.

        It costs no attempt. But a row that is refused all the time while others are answered (`succeeded_at`: the
        last time, time.monotonic) is refused for what it is: more tokens than a minute's allowance, for example.
        """
        now = time.monotonic()
        if self._refused_since is None:
            self._refused_since = now
        self.pause_s = 0.0
        return now - self._refused_since > self._give_up_after_s and succeeded_at > self._refused_since
