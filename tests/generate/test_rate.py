from __future__ import annotations

from eyas.generate.rate import Rate, Speed


def test_nothing_is_known_before_the_first_row() -> None:
    rate = Rate(100.0)
    rate.mark(130.0, 0, 0)
    assert rate.recent() is None
    assert rate.mean() is None


def test_the_last_minute_counts_not_the_start() -> None:
    rate = Rate(0.0)
    for second in range(1, 101):  # slow at first, as servers that compile are
        rate.mark(float(second), second, 10 * second)
    for second in range(101, 301):
        rate.mark(float(second), 100 + 5 * (second - 100), 0)
    recent, mean = rate.recent(), rate.mean()
    assert recent is not None
    assert mean is not None
    assert recent.rows_per_s == 5
    assert 60 <= recent.window_s < 62
    assert mean == Speed(1100 / 300, 0.0, 300.0)


def test_slow_runs_look_back_over_twenty_rows() -> None:
    rate = Rate(0.0)
    for second in range(1, 3601):
        rate.mark(float(second), second // 60, second)  # a row a minute
    recent = rate.recent()
    assert recent is not None
    assert 19 * 60 <= recent.window_s < 22 * 60
    assert abs(recent.rows_per_s * 60 - 1) < 0.06


def test_a_standstill_shows() -> None:
    rate = Rate(0.0)
    for second in range(1, 101):
        rate.mark(float(second), 10 * second, 0)
    for second in range(101, 201):
        rate.mark(float(second), 1000, 0)
    recent = rate.recent()
    assert recent is not None
    assert recent.rows_per_s < 0.5
    assert len(rate._marks) < 200
