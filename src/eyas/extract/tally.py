"""What the gate has counted of one dataset. Tallies of shards and ranks add up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from math import sqrt
from typing import Any

SHOWN = 5


@dataclass(frozen=True)
class Disagreement:
    """A generated token that lies below the target's argmax by more than rounding explains."""

    sequence_id: str
    position: int
    token: int
    argmax: int
    margin: float
    """Logit of the argmax minus that of the token."""

    def __str__(self) -> str:
        return (
            f"{self.sequence_id} position {self.position}: token {self.token}, argmax {self.argmax}, "
            f"margin {self.margin:.4g}"
        )


@dataclass(frozen=True)
class Suspect:
    """A sequence whose tokens look as if they can't come from its states. The limits of a run judge it (Rules.evidence)."""

    sequence_id: str
    tokens: int
    """Generated tokens."""
    differing: int
    """Of them, those that are not the argmax."""
    disagreed: int
    """Of these, those that rounding does not explain."""
    evidence: float | None
    """Of sampled tokens, nats; None: greedy ones, judged by their counts."""

    def __str__(self) -> str:
        return f"{self.sequence_id} ({self.differing} of {self.tokens} tokens are not the argmax)"


@dataclass
class Tally:
    """Counts of one dataset."""

    sequences: int = 0
    checked: int = 0
    """Generated tokens with a token before them."""
    near_ties: int = 0
    """Tokens that are not the argmax, by no more than rounding explains."""
    disagreed: int = 0
    """Tokens that are not the argmax, by more."""
    margins: float = 0.0
    """Sum of the margins of these."""
    excess: float = 0.0
    """Sum of -log p(x) - H(p) over sampled tokens, nats."""
    variance: float = 0.0
    """Sum of the varentropies, nats squared."""
    outside: int = 0
    """Sampled tokens that top_k and top_p would not have kept."""
    worst: list[Disagreement] = field(default_factory=list)
    """The largest margins."""
    suspects: list[Suspect] = field(default_factory=list)
    """All of them, whatever the limits of the run: a later run may have others."""

    def add(self, other: Tally) -> None:
        """Add the counts of other sequences of the dataset."""
        self.sequences += other.sequences
        self.checked += other.checked
        self.near_ties += other.near_ties
        self.disagreed += other.disagreed
        self.margins += other.margins
        self.excess += other.excess
        self.variance += other.variance
        self.outside += other.outside
        worst = [*self.worst, *other.worst]
        self.worst = sorted(worst, key=lambda found: (-found.margin, found.sequence_id, found.position))[
            :SHOWN
        ]
        self.suspects += other.suspects

    def z(self, bias: float) -> float | None:
        """How many standard deviations the surprise of the sampled tokens lies from the entropy.

        Rounding adds a bias to each token that no number of tokens averages out: up to `bias` nats are no sign of
        anything. None: nothing varied.
        """
        spread = sqrt(self.variance + (bias * (self.checked - self.outside)) ** 2)
        return self.excess / spread if self.variance > 0 else None

    def to_json(self) -> dict[str, Any]:
        """For the record of a shard."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Tally:
        """Read to_json's.

        Raises:
            TypeError: keys are missing or unknown.
        """
        lists = {
            "worst": [Disagreement(**found) for found in values["worst"]],
            "suspects": [Suspect(**found) for found in values["suspects"]],
        }
        return cls(**{**values, **lists})
