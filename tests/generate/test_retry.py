"""Waiting times."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from eyas.generate.retry import Patience, backoff_s, retry_after_s

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
        ("Mon, 01 Jan 99999999999999 00:00:00 GMT", None),
    ],
)
def test_retry_after_is_seconds_or_a_date(header: str | None, seconds: float | None) -> None:
    assert retry_after_s(header, NOW) == seconds


def test_a_row_ends_with_its_last_attempt_and_pauses_longer_each_time() -> None:
    patience = Patience(4, give_up_after_s=60.0, backoff_base_s=1.0)
    pauses = []
    for _ in range(3):
        assert not patience.spend()
        pauses.append(patience.pause_s)
    assert 0.5 <= pauses[0] <= 1.0 <= pauses[1] <= 2.0 <= pauses[2] <= 4.0
    assert patience.spend()


def test_a_pause_that_the_server_asks_for_is_kept() -> None:
    patience = Patience(4, give_up_after_s=60.0)
    patience.spend(retry_after_s=7.5)
    assert patience.pause_s == 7.5
    patience.spare()
    assert patience.pause_s == 0.0


def test_a_server_that_is_down_costs_no_attempt() -> None:
    patience = Patience(1, give_up_after_s=60.0)
    assert not any(patience.spare() for _ in range(100))
    assert patience.spend()


def test_refusals_cost_no_attempt_but_have_an_end_while_others_are_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    patience = Patience(1, give_up_after_s=60.0)
    assert not patience.refused(succeeded_at=99.0)
    clock[0] = 159.0
    assert not patience.refused(succeeded_at=150.0)
    clock[0] = 161.0
    assert not patience.refused(succeeded_at=99.0)  # nobody is answered: the run's matter, not this row's
    assert patience.refused(succeeded_at=150.0)
    patience.spare()  # the server was down in between: a new count begins
    assert not patience.refused(succeeded_at=150.0)


def test_a_server_may_be_down_for_days() -> None:
    assert 30.0 <= backoff_s(100_000) <= 60.0
