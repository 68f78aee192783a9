"""How answers are asked for: the keys of section `generate` by which the stored answers were made too."""

from __future__ import annotations

import zlib
from dataclasses import dataclass

from eyas.engine.questions import Question
from eyas.sampling import SMALLEST_TEMPERATURE


@dataclass(frozen=True)
class Asking:
    """Sampling of answers, and where they end."""

    temperature: float
    """0: greedy."""
    top_p: float
    top_k: int
    """0: no limit."""
    max_tokens: int
    """Of a sampled answer. A greedy one is asked for as many tokens as the stored one has."""
    seed: int
    """With temperature > 0 every question gets its own seed made from this one and its id."""

    @property
    def greedy(self) -> bool:
        """Whether every token is the target's most likely one."""
        return self.temperature < SMALLEST_TEMPERATURE or self.top_k == 1

    def limit(self, question: Question) -> int:
        """Most tokens of the answer.

        Sampled answers are not cut to the stored length: short answers would then be short twice.
        """
        return len(question.answer_ids) if self.greedy else self.max_tokens

    def seed_of(self, question: Question) -> int | None:
        """A 31-bit seed, the same with and without drafter and in every run; None where nothing is sampled."""
        return None if self.greedy else zlib.crc32(f"{self.seed} {question.sequence_id}".encode()) >> 1


GREEDY = Asking(temperature=0.0, top_p=1.0, top_k=0, max_tokens=1, seed=0)
