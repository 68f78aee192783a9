"""The `compute` section: where and on how much hardware a stage computes. No stage depends on it; changing it reruns nothing.

Nothing in it may decide a result: more processes or smaller passes change the order of floating-point sums at most.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

ACCELERATORS = ("auto", "cpu", "gpu", "cuda", "mps")
STRATEGIES = ("auto", "ddp")
DEVICE_MAPS = ("auto", "balanced", "balanced_low_0", "sequential")


@dataclass(frozen=True)
class ComputeParams:
    """Devices, processes and memory of the stages that run a model in this process."""

    accelerator: str = "auto"
    """auto (a CUDA GPU if there is one) | cpu | gpu | cuda | mps."""
    devices: int | str = "auto"
    """Processes on each node, one per GPU: a number, or auto: every GPU; one process on a CPU."""
    num_nodes: int = 1
    """Machines that work together; with more than one, each is started by torchrun or a cluster's launcher."""
    strategy: str = "auto"
    """How processes work together: auto (one process alone, or ddp) | ddp."""
    threads: int | None = None
    """CPU threads of each process; null: what OMP_NUM_THREADS says, or the cores of this machine, shared by its processes.
    """
    device_map: str | None = None
    """How one process spreads a target over several GPUs that is too large for one: auto | balanced | balanced_low_0 |
    sequential, as in accelerate; null: one device."""
    pass_tokens: int | None = None
    """Most tokens of one forward and backward pass of training on one process; null: all of its share of a step."""
    checkpoint_every_s: float = 60.0
    """Training saves its state so often, and after each validation; 0: after every step. A kill costs at most so much."""

    def __post_init__(self) -> None:
        for key, known in (("accelerator", ACCELERATORS), ("strategy", STRATEGIES)):
            if getattr(self, key) not in known:
                raise ValueError(f"{key}: {getattr(self, key)!r} is not one of {', '.join(known)}")
        if self.device_map not in (None, *DEVICE_MAPS):
            raise ValueError(
                f"device_map: {self.device_map!r} is neither null nor one of {', '.join(DEVICE_MAPS)}"
            )
        if isinstance(self.devices, str) and self.devices != "auto":
            raise ValueError(f"devices: {self.devices!r} is neither auto nor a number")
        for key in ("devices", "num_nodes", "threads", "pass_tokens"):
            value = getattr(self, key)
            if isinstance(value, bool) or (isinstance(value, int) and value < 1):
                raise ValueError(f"{key}: {value} is below 1")
        if not 0 <= self.checkpoint_every_s < math.inf:
            raise ValueError(f"checkpoint_every_s: {self.checkpoint_every_s} is not a number of at least 0")
