"""The servers of a run, as their pool knows them."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from eyas.generate.window import Window
from eyas.serving.endpoint import ModelInfo


class State(StrEnum):
    """What an endpoint may get."""

    UP = "up"
    DOWN = "down"
    """Nothing; its health is polled."""
    TRIAL = "trial"
    """One request at a time, until one succeeds."""


@dataclass(eq=False)
class Endpoint:
    """One server of a run."""

    url: str
    """Ends with /v1."""
    model: ModelInfo
    in_flight: int = 0
    state: State = State.UP
    window: Window = field(default_factory=Window)
    answered: bool = False
    """It has answered in this run."""
    problem: str | None = None
    """The last thing that went wrong, None behind a success."""
    resume_at: float = 0.0
    """No request before this moment (time.monotonic)."""
    pauses: int = 0
    """Pauses since the last success; each is longer than the one before."""
    failing: set[str] = field(default_factory=set)
    """Keys of the rows that have failed since the last success."""
    outages: int = 0
    """How often it went down. What was in flight then is counted no more, and whatever becomes of it is no row's fault."""
    checked_at: float = 0.0
    healthy: bool = True
    """What the last health check said."""
    check: asyncio.Lock = field(default_factory=asyncio.Lock)

    def limit(self, share: int) -> int:
        """Most requests that it may have in flight now."""
        if self.state is State.UP:
            return self.window.limit(share)
        return 1 if self.state is State.TRIAL else 0

    def to_json(self, share: int) -> dict[str, Any]:
        """For progress displays."""
        return {
            "url": self.url,
            "state": str(self.state),
            "in_flight": self.in_flight,
            "window": self.limit(share),
            "problem": self.problem,
        }


@dataclass(eq=False, slots=True)
class Lease:
    """The right to have one request in flight."""

    endpoint: Endpoint
    started: float
    """When it was given (time.monotonic)."""
    outages: int
    """Those of the endpoint before."""

    @property
    def is_stale(self) -> bool:
        """The endpoint went down since."""
        return self.outages != self.endpoint.outages
