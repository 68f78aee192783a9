"""Acceptance from counts: one definition for the simulated and the real engine.

A draft (draft round) proposes K tokens after a target step; the target accepts the first 0..K of them and adds
one token of its own, the bonus token. Counts are those of vLLM's `vllm:spec_decode_*` counters; a simulation's may be
expectations.
"""

from __future__ import annotations

from dataclasses import dataclass

from eyas.metrics import share

FORMULA = "acceptance.length = 1 + accepted / drafts: tokens per target step, the bonus token included"


@dataclass(frozen=True)
class AcceptanceCounts:
    """Drafts and what was accepted of them."""

    drafts: float
    """Draft rounds."""
    accepted_at: list[float]
    """[K]: rounds in which at least the first i+1 drafted tokens were accepted."""

    @property
    def accepted(self) -> float:
        """Accepted tokens, bonus tokens not included."""
        return sum(self.accepted_at)

    @property
    def length(self) -> float | None:
        """Acceptance length, in tokens; None without drafts."""
        return 1 + self.accepted / self.drafts if self.drafts else None

    @property
    def rates(self) -> list[float | None]:
        """[K]: share of all drafts whose first i+1 tokens were accepted (unconditional)."""
        return [share(count, self.drafts) for count in self.accepted_at]

    @property
    def conditional_rates(self) -> list[float | None]:
        """[K]: of the drafts accepted up to token i, the share accepted at token i+1 too; None without any."""
        return [
            share(count, reached)
            for count, reached in zip(self.accepted_at, [self.drafts, *self.accepted_at], strict=False)
        ]

    def __add__(self, other: AcceptanceCounts) -> AcceptanceCounts:
        return AcceptanceCounts(
            drafts=self.drafts + other.drafts,
            accepted_at=[
                mine + theirs for mine, theirs in zip(self.accepted_at, other.accepted_at, strict=True)
            ],
        )

    def acceptance(self) -> dict[str, float | None]:
        """Length and unconditional rates as they stand in reports; draft positions count from 1."""
        return {"length": self.length, **by_draft_position(self.rates)}

    def report(self) -> dict[str, object]:
        """The counts and rates as they stand in reports."""
        return {
            "drafts": whole(self.drafts),
            "accepted": whole(self.accepted),
            "acceptance": self.acceptance(),
            "conditional": by_draft_position(self.conditional_rates),
        }


def by_draft_position(values: list[float | None]) -> dict[str, float | None]:
    """Values [K] by name: at_1, at_2, ..."""
    return {f"at_{position}": value for position, value in enumerate(values, start=1)}


def whole(count: float) -> float:
    """A count as a report shows it: an int unless it is an expectation."""
    return int(count) if float(count).is_integer() else count
