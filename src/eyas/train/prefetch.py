"""Making the next items in a thread while the caller works on this one.

A thread is enough: packing a batch is copying out of the memory map, which does not hold the interpreter's lock, and takes
less than a hundredth of a step. Worker processes would copy each batch once more.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from queue import Full, Queue
from typing import TypeVar

Item = TypeVar("Item")

WAIT_S = 0.1


@dataclass(frozen=True)
class _Failure:
    error: BaseException


_END = object()


def prefetched(items: Iterable[Item], depth: int) -> Iterator[Item]:
    """The same items in the same order, up to `depth` of them made ahead.

    What `items` raises is raised here. Closing this generator stops the thread.
    """
    made: Queue[object] = Queue(maxsize=depth)
    stopped = threading.Event()
    thread = threading.Thread(target=_fill, args=(made, items, stopped), name="prefetch", daemon=True)
    thread.start()
    try:
        while (item := made.get()) is not _END:
            if isinstance(item, _Failure):
                raise item.error
            yield item  # type: ignore[misc]
    finally:
        stopped.set()
        thread.join()


def _fill(made: Queue[object], items: Iterable[object], stopped: threading.Event) -> None:
    try:
        for item in items:
            if not _put(made, item, stopped):
                return
        _put(made, _END, stopped)
    except BaseException as error:  # noqa: BLE001 - it is raised where the item was wanted
        _put(made, _Failure(error), stopped)


def _put(made: Queue[object], item: object, stopped: threading.Event) -> bool:
    """Whether there was room before everything was stopped."""
    while not stopped.is_set():
        try:
            made.put(item, timeout=WAIT_S)
        except Full:
            continue
        return True
    return False
