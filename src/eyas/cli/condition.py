"""Whether a run is alive, and how it ended: from its summary and from who holds the journal's lock."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from eyas.errors import printable
from eyas.filelock import Holder
from eyas.generate.view import age

QUIET_S = 30.0
"""A run writes its summary every second; one that has not for so long hangs, or its machine does."""

LIVE = ("starting", "running", "finishing")


@dataclass(frozen=True)
class Condition:
    """The state of a run."""

    name: str
    """starting | running | finishing | finished | stopped | failed | killed | unknown."""
    detail: str
    """The same in words."""

    @property
    def is_live(self) -> bool:
        """Whether a process holds the journal."""
        return self.name in LIVE


def condition(summary: Mapping[str, Any] | None, holder: Holder | None, now: float) -> Condition:
    """The condition of a run; `now` in Unix seconds."""
    if holder is not None and holder.holds:
        return _alive(summary, holder, now)
    if summary is None:
        return Condition("unknown", "no process writes it, and no run has left a summary")
    since = f"{age(now - summary['written_at'])} ago"
    if summary["state"] == "running":
        return Condition(
            "killed",
            f"pid {summary['pid']} is gone without a word, last seen {since}; its answers are kept, "
            "`dvc repro` goes on from them",
        )
    message = printable(str(summary["message"] or "")).strip()
    return Condition(summary["state"], f"{since}, pid {summary['pid']}" + (f"\n{message}" if message else ""))


def _alive(summary: Mapping[str, Any] | None, holder: Holder, now: float) -> Condition:
    if summary is None or summary["pid"] != holder.pid:
        return Condition("starting", f"pid {holder.pid} has opened the journal and has asked nothing yet")
    if summary["state"] != "running":
        return Condition(
            "finishing", f"pid {holder.pid} has asked all it could; it publishes, or asks other datasets"
        )
    silent = now - summary["written_at"]
    quiet = f"; it hangs, or its machine does: no sign of life for {age(silent)}" if silent > QUIET_S else ""
    return Condition("running", f"pid {holder.pid}{quiet}")
