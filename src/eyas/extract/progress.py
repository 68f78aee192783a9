"""Plain progress lines with rate and time left."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field

logger = logging.getLogger("eyas.extract")

INTERVAL_S = 15.0


@dataclass
class Progress:
    """Counts tokens of one piece of work and logs a line now and then."""

    name: str
    total: int
    """Tokens to do."""
    done: int = 0
    _start: float = field(default_factory=time.monotonic)
    _shown: float = field(default_factory=time.monotonic)

    def add(self, tokens: int) -> None:
        """Count tokens; log if the last line is old."""
        self.done += tokens
        if time.monotonic() - self._shown >= INTERVAL_S:
            self._shown = time.monotonic()
            rate = self.tokens_per_s
            logger.info(
                "%s: %d of %d tokens, %.0f tokens/s, %.0f s left",
                self.name, self.done, self.total, rate, (self.total - self.done) / rate,
            )  # fmt: skip

    def finish(self) -> None:
        """Log the whole."""
        logger.info(
            "%s: %d tokens in %.0f s, %.0f tokens/s", self.name, self.done, self.seconds, self.tokens_per_s
        )

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._start

    @property
    def tokens_per_s(self) -> float:
        return self.done / max(self.seconds, 1e-9)
