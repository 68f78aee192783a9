"""What a training run has come to so far: part of its saved state, and the source of its report."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Self


@dataclass(frozen=True)
class Validation:
    """Results of one validation."""

    step: int
    """Optimiser steps done before it."""
    epoch: int
    """Epochs done, the one under way included; 0: before training."""
    values: dict[str, float]
    """As AcceptanceSums.result names them."""

    @property
    def acceptance_length(self) -> float:
        return self.values["acceptance_length"]


@dataclass
class Window:
    """Sums since the last row of the curves."""

    steps: int = 0
    loss: float = 0.0
    step_losses: list[float] = field(default_factory=list)
    grad_norm: float = 0.0

    def add(self, loss: float, step_losses: list[float], grad_norm: float) -> None:
        """Take in a step."""
        self.step_losses = [
            own + new
            for own, new in zip(self.step_losses or [0.0] * len(step_losses), step_losses, strict=True)
        ]
        self.steps += 1
        self.loss += loss
        self.grad_norm += grad_norm

    def means(self) -> dict[str, float]:
        """Means over the steps taken in, by the names of the curves."""
        steps = {f"loss_step_{k}": value / self.steps for k, value in enumerate(self.step_losses, start=1)}
        return {"loss": self.loss / self.steps, **steps, "grad_norm": self.grad_norm / self.steps}


@dataclass
class Record:
    """Where a run stands, and its history. JSON keeps every number exactly."""

    step: int = 0
    """Optimiser steps done."""
    stretch: int = 0
    """Stretch under way; as many as there are: training is done."""
    offset: int = 0
    """Steps of it that are done."""
    tokens: int = 0
    """Tokens seen, over all epochs and processes."""
    labels: int = 0
    """Labelled positions trained on, likewise."""
    seconds: float = 0.0
    """Spent on training in all runs so far."""
    validating: float = 0.0
    """Seconds of these in validations."""
    saving: float = 0.0
    """Seconds of these in which the state was saved."""
    resumed: int = 0
    """How often a run went on from a saved state."""
    stopped_early: bool = False
    untrained: Validation | None = None
    validations: list[Validation] = field(default_factory=list)
    window: Window = field(default_factory=Window)

    @property
    def best(self) -> Validation | None:
        """The validation with the highest acceptance length; of equals the first."""
        return max(self.validations, key=lambda found: found.acceptance_length, default=None)

    @property
    def waited(self) -> int:
        """Validations since the best one."""
        best = self.best
        return len(self.validations) - 1 - self.validations.index(best) if best else 0

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Self:
        """Back from plain values.

        Raises:
            TypeError, KeyError: they are not those of a record.
        """
        untrained = values["untrained"]
        return cls(
            **{
                **values,
                "untrained": None if untrained is None else Validation(**untrained),
                "validations": [Validation(**found) for found in values["validations"]],
                "window": Window(**values["window"]),
            }
        )
