"""What an exported drafter is for: the target beside which an engine serves it."""

from __future__ import annotations

from dataclasses import dataclass

from eyas import paths
from eyas.target.spec import TargetProfile


@dataclass(frozen=True)
class Serving:
    """Facts that stand in an exported config beside the drafter's own."""

    profile: TargetProfile
    dtype: str
    """Of the weights: a torch name such as float32."""
    draft_tokens: int
    """Tokens drafted for each target step; a server's command line can say otherwise."""

    @property
    def target_name(self) -> str:
        """What an engine loads the target from: a hub id, or the target's folder in this repository."""
        kind, _, name = self.profile.source.partition(":")
        return name if kind == "hub" and name else str(paths.TARGET)

    @property
    def target_is_public(self) -> bool:
        """Whether `target_name` means the same on another machine."""
        return self.target_name != str(paths.TARGET)
