"""SIGINT and SIGTERM while an event loop runs: stop taking work, abandon what is in flight, keep what arrived."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

from eyas.errors import Interrupted

_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def run_until_stopped(work: Coroutine[Any, Any, None]) -> None:
    """`asyncio.run`, but the first stop signal cancels the work. Main thread only.

    Further signals are ignored from then on, so that clean-up (sync, stopping a server) is not cut short.

    Raises:
        Interrupted: a stop signal arrived.
    """
    asyncio.run(_until_stopped(work))


async def _until_stopped(work: Coroutine[Any, Any, None]) -> None:
    task = asyncio.ensure_future(work)
    received: list[int] = []

    def stop(signum: int) -> None:
        received.append(signum)
        task.cancel()

    with _handlers(stop, received):
        try:
            await task
        except BaseException:
            if not received:
                raise
    if received:
        raise Interrupted(received[0])


@contextmanager
def _handlers(stop: Callable[[int], None], received: list[int]) -> Iterator[None]:
    """Install handlers on the running loop; put back the ones before, or ignore signals once one has arrived."""
    loop = asyncio.get_running_loop()
    before = {signum: signal.getsignal(signum) for signum in _STOP_SIGNALS}
    for signum in _STOP_SIGNALS:
        loop.add_signal_handler(signum, stop, signum)
    try:
        yield
    finally:
        for signum in _STOP_SIGNALS:
            loop.remove_signal_handler(signum)
            signal.signal(signum, signal.SIG_IGN if received else before[signum])
