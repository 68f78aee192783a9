"""When to try again: exponential back-off with jitter, and the server's own Retry-After."""

from __future__ import annotations

import math
import random
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

_RANDOM = random.SystemRandom()  # clients started together must not retry together


def backoff_s(failures: int, base_s: float = 1.0, limit_s: float = 60.0) -> float:
    """Seconds to wait after so many failures in a row: base, 2 base, 4 base, ... each shortened by up to half."""
    longest: float = min(limit_s, base_s * 2.0 ** (failures - 1))
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
        except ValueError:
            return None
        moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        seconds = (moment - (now or datetime.now(UTC))).total_seconds()
    return None if math.isnan(seconds) else min(max(seconds, 0.0), limit_s)
