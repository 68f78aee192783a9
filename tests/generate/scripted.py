"""A scripted OpenAI-compatible server in a thread of the test: for faults, counting POSTs and the most in flight."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Coroutine
from threading import Thread
from types import TracebackType
from typing import Any, Self, TypeVar

from tests.generate.scripted_replies import (
    GENERATION_PROMPT,
    MODEL,
    Script,
    Scripted,
    answer,
    completion,
    events,
)
from tests.generate.scripted_service import Seen, Service

__all__ = [
    "GENERATION_PROMPT",
    "MODEL",
    "Script",
    "Scripted",
    "ScriptedServer",
    "answer",
    "completion",
    "events",
]

Value = TypeVar("Value")


class ScriptedServer:
    """Context manager: a `Service` in a thread of this process."""

    def __init__(self, script: Script = answer) -> None:
        self._service = Service(script)
        self._service.bodies = []
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self._do(self._service.listen())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._do(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self._service.port}/v1"

    @property
    def script(self) -> Script:
        return self._service.script

    @script.setter
    def script(self, script: Script) -> None:
        self._service.script = script

    @property
    def seen(self) -> Seen:
        return self._service.seen

    @property
    def posts(self) -> Counter[str]:
        return self._service.seen.posts

    @property
    def most_in_flight(self) -> int:
        return self._service.seen.most_in_flight

    @property
    def bodies(self) -> list[dict[str, Any]]:
        assert self._service.bodies is not None
        return self._service.bodies

    @property
    def pages(self) -> dict[str, tuple[int, Any]]:
        """GET replies by path: status and JSON value."""
        return self._service.pages

    def stop(self) -> None:
        """Reset every connection and refuse new ones, until `start`."""
        self._do(self._service.stop())

    def start(self) -> None:
        """Listen again at the same address."""
        self._do(self._service.listen())

    async def _end(self) -> None:
        await self._service.stop()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _do(self, work: Coroutine[Any, Any, Value]) -> Value:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)
