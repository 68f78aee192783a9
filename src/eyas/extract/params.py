"""The `extract` section of params.yaml."""

from __future__ import annotations

from dataclasses import dataclass

from eyas.manifest import DTYPE_BYTES


@dataclass(frozen=True)
class ExtractParams:
    """How the target's hidden states are computed and stored. They are computed in `target.dtype`."""

    dtype: str = "float32"
    """Storage type: float32 or bfloat16 (half the disk)."""
    batch_tokens: int = 4096
    """Tokens per forward pass, padding included; a longer sequence is a batch of its own."""
    shard_bytes: int = 1 << 30
    """Largest shard; also about how many bytes of states are held in memory."""
    min_agreement: float = 1.0
    """Share of each dataset's generated tokens that the target's argmax must reproduce.

    1.0 is right for greedy answers in float32 only. Answers sampled at a temperature are no argmax, and in 16 bit
    near-ties fall differently in each kernel: lower it, to 0.0 for no check. The share is reported in any case.
    """

    def __post_init__(self) -> None:
        if self.dtype not in DTYPE_BYTES:
            raise ValueError(f"dtype: {self.dtype!r} is not one of {', '.join(DTYPE_BYTES)}")
        if self.batch_tokens < 1:
            raise ValueError(f"batch_tokens: {self.batch_tokens} is below 1")
        if self.shard_bytes < 1 << 20:
            raise ValueError(f"shard_bytes: {self.shard_bytes} is below {1 << 20}, 1 MiB")
        if not 0.0 <= self.min_agreement <= 1.0:
            raise ValueError(f"min_agreement: {self.min_agreement} is outside 0..1")
