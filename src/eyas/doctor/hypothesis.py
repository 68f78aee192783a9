"""One way in which the folder, or the engine, may differ from what it should be."""

from __future__ import annotations

from dataclasses import dataclass, field

from eyas.referee.reading import Reading


@dataclass(frozen=True)
class Change:
    """The line to change."""

    file: str
    key: str
    """Key of a JSON file, name of a tensor, or option of the engine."""
    now: str
    should: str

    @property
    def text(self) -> str:
        """For people."""
        return f"{self.file}: {self.key}: {self.now} -> {self.should}"


@dataclass(frozen=True)
class Hypothesis:
    """What would be computed if one thing were otherwise."""

    cause: str
    """Key of `eyas.doctor.causes.CAUSES`."""
    what: str
    """What is otherwise, in a few words."""
    change: Change
    reading: Reading
    layer_ids: list[int]
    """Layers whose states it is fed, in the order of fc."""
    quantised: bool = False
    """The target's weights are rounded."""
    order: list[int] = field(default_factory=list)
    """Order in which the columns of the aux states reach fc, if not the plain one."""
