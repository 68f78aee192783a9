"""The `extract` section of params.yaml."""

from __future__ import annotations

from dataclasses import dataclass

from eyas.storage import STORAGE_TYPES

BACKENDS = ("transformers", "vllm")


@dataclass(frozen=True)
class ExtractParams:
    """How the target's hidden states are computed and stored. They are computed in `target.dtype`."""

    backend: str = "transformers"
    """What runs the target: transformers, in this process, or vllm, the server that answers too."""
    dtype: str = "float32"
    """Storage type: float32, bfloat16 (half the disk) or int8 (about a quarter)."""
    batch_tokens: int = 4096
    """Tokens computed in one forward pass; a longer sequence is a batch of its own."""
    shard_bytes: int = 1 << 30
    """Largest shard. A process holds about two of them: the one that is computed and the one that is written."""
    min_agreement: float = 1.0
    """Share of each dataset's generated tokens that the target's argmax must reproduce; only for greedy answers.

    Tokens whose logit lies within the rounding of `target.dtype` below the largest count as reproduced, so that 1.0 is
    right for 16-bit targets too. 0.0: no check. The share is reported in any case.
    """
    max_sampling_z: float = 6.0
    """Largest |z| of sampled answers: how far, in standard deviations, the mean surprise of a dataset's tokens may lie
    from the target's own entropy. 0.0: no check. Greedy answers: not used."""

    def __post_init__(self) -> None:
        if self.backend not in BACKENDS:
            raise ValueError(f"backend: {self.backend!r} is not one of {', '.join(BACKENDS)}")
        if self.dtype not in STORAGE_TYPES:
            raise ValueError(f"dtype: {self.dtype!r} is not one of {', '.join(STORAGE_TYPES)}")
        if self.batch_tokens < 1:
            raise ValueError(f"batch_tokens: {self.batch_tokens} is below 1")
        if self.shard_bytes < 1 << 20:
            raise ValueError(f"shard_bytes: {self.shard_bytes} is below {1 << 20}, 1 MiB")
        if not 0.0 <= self.min_agreement <= 1.0:
            raise ValueError(f"min_agreement: {self.min_agreement} is outside 0..1")
        if not 0 <= self.max_sampling_z < float("inf"):
            raise ValueError(f"max_sampling_z: {self.max_sampling_z} is not a number from 0 on")
