from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from eyas.train.prefetch import prefetched


def test_same_items_in_the_same_order() -> None:
    assert list(prefetched(range(100), 3)) == list(range(100))


def test_made_ahead_but_not_further_than_asked() -> None:
    made: list[int] = []

    def items() -> Iterator[int]:
        for number in range(50):
            made.append(number)
            yield number

    stream = prefetched(items(), 2)
    assert next(stream) == 0
    deadline = time.monotonic() + 5
    while len(made) < 4 and time.monotonic() < deadline:  # one used, two waiting, one in hand
        time.sleep(0.01)
    time.sleep(0.05)
    assert len(made) == 4
    stream.close()  # type: ignore[attr-defined]
    assert not [thread for thread in threading.enumerate() if thread.name == "prefetch"]


def test_an_error_comes_at_its_place() -> None:
    def items() -> Iterator[int]:
        yield 1
        raise OSError("gone")

    stream = prefetched(items(), 4)
    assert next(stream) == 1
    with pytest.raises(OSError, match="gone"):
        next(stream)
