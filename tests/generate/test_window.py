"""The window of a busy endpoint."""

from __future__ import annotations

from eyas.generate.window import Window


def test_there_is_no_limit_before_the_first_refusal() -> None:
    window = Window()
    assert window.limit(128) == 128
    assert window.limit(64) == 64
    assert window.limit(1) == 1


def test_a_refusal_halves_it_once_per_round_trip() -> None:
    window = Window()
    assert window.cut(128, started=10.0, now=11.0)
    assert window.limit(128) == 64
    assert not window.cut(128, started=10.5, now=11.2)  # was on its way when the window was cut
    assert window.limit(128) == 64
    assert window.cut(128, started=11.0, now=12.0)
    assert window.limit(128) == 32


def test_it_never_falls_below_one() -> None:
    window = Window()
    for second in range(20):
        window.cut(128, started=second, now=second)
    assert window.limit(128) == 1


def test_a_window_full_of_successes_adds_about_one() -> None:
    window = Window()
    window.cut(40, started=0.0, now=0.0)
    for expected in (20, 21, 22, 23):
        assert window.limit(40) in (expected - 1, expected)
        for _ in range(window.limit(40)):
            window.grow(40)


def test_at_the_whole_share_the_limit_is_gone() -> None:
    window = Window()
    window.cut(4, started=0.0, now=0.0)
    for _ in range(40):
        window.grow(4)
    assert window.limit(4) == 4
    assert window.limit(100) == 100  # the share has grown: another endpoint went down
