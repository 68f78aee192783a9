"""Waiting times."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from eyas.generate.retry import backoff_s, retry_after_s

NOW = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)


def test_waits_double_and_are_jittered_downwards() -> None:
    for failures, longest in [(1, 1.0), (2, 2.0), (3, 4.0), (6, 32.0), (7, 60.0), (40, 60.0)]:
        waits = [backoff_s(failures) for _ in range(200)]
        assert all(longest / 2 <= wait <= longest for wait in waits)
        assert len(set(waits)) > 150


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        (None, None),
        ("", None),
        ("soon", None),
        ("nan", None),
        ("3", 3.0),
        ("0.25", 0.25),
        ("-5", 0.0),
        ("86400", 600.0),
        ("Sun, 01 Mar 2026 12:00:07 GMT", 7.0),
        ("Sun, 01 Mar 2026 13:00:07 +0100", 7.0),
        ("Sun, 01 Mar 2026 12:00:07 -0000", 7.0),
        ("Sun, 01 Mar 2026 11:59:00 GMT", 0.0),
    ],
)
def test_retry_after_is_seconds_or_a_date(header: str | None, seconds: float | None) -> None:
    assert retry_after_s(header, NOW) == seconds
