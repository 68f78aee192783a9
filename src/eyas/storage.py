"""Storage types of hidden states: how a vector becomes bytes and comes back.

float32 and bfloat16 keep values as they are. int8 keeps one code per value and one bfloat16 scale per block of 64
neighbours. A few dimensions are thousands of times larger than the rest (massive activations, arXiv:2402.17762) and would
decide the step of their whole block, so a block is rotated first: multiplied with a Hadamard matrix, which spreads every
value over the block (QuaRot, arXiv:2404.00456). The matrix is its own inverse. Codes times its entries are added without
rounding in float32, so that decoding gives the same bits on every machine.

Letters in shape comments: H values of a vector, B blocks of K values.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # whoever reads a manifest alone does without torch
    import torch
    from torch import Tensor

LARGEST_BLOCK = 64
LARGEST_CODE = 127
SCALE_BYTES = 2


@dataclass(frozen=True)
class StorageType:
    """How the values of a vector are stored."""

    torch_name: str
    """Name of the torch dtype of the values or codes."""
    value_bytes: int
    in_blocks: bool = False
    """Whether codes and scales are stored instead of values."""

    @property
    def torch_dtype(self) -> torch.dtype:
        import torch

        dtype: torch.dtype = getattr(torch, self.torch_name)
        return dtype

    def vector_bytes(self, size: int) -> int:
        """Bytes of a vector of `size` values, scales included."""
        if not self.in_blocks:
            return size * self.value_bytes
        return size * self.value_bytes + size // block_of(size) * SCALE_BYTES


STORAGE_TYPES = {
    "float32": StorageType("float32", 4),
    "bfloat16": StorageType("bfloat16", 2),
    "int8": StorageType("int8", 1, in_blocks=True),
}
"""By the name that params and manifests use."""


@dataclass(frozen=True)
class Encoded:
    """Vectors in their storage type."""

    codes: Tensor
    """[..., H] values, or int8."""
    scales: Tensor | None
    """bfloat16 [..., B], or None for values."""


def block_of(size: int) -> int:
    """K: values that share a scale, the largest power of two up to 64 that divides `size`."""
    return min(size & -size, LARGEST_BLOCK)


def encode(values: Tensor, dtype: str) -> Encoded:
    """Vectors [..., H] in a storage type, on their device.

    Raises:
        ValueError: a value is not finite, for int8.
    """
    import torch

    kind = STORAGE_TYPES[dtype]
    if not kind.in_blocks:
        return Encoded(values.to(kind.torch_dtype), None)
    block = block_of(values.shape[-1])
    blocks = values.float().unflatten(-1, (-1, block)) @ _rotation(block, values.device)  # [..., B, K]
    scales = (blocks.abs().amax(dim=-1) / LARGEST_CODE).to(torch.bfloat16)  # [..., B]
    if not torch.isfinite(scales).all():
        raise ValueError("a hidden state is not finite")
    steps = torch.where(scales > 0, scales, 1).float().unsqueeze(-1)
    # bfloat16 may round a scale down, by so little that the largest value is clipped by half a step at most
    codes = (blocks / steps).round().clamp(-LARGEST_CODE, LARGEST_CODE)
    return Encoded(codes.to(torch.int8).flatten(-2), scales)


def decode(encoded: Encoded) -> Tensor:
    """The vectors [..., H]: stored values as they are, codes as float32."""
    if encoded.scales is None:
        return encoded.codes
    codes = encoded.codes.unflatten(-1, (encoded.scales.shape[-1], -1)).float()  # [..., B, K]
    blocks: Tensor = codes @ _rotation(codes.shape[-1], codes.device)
    return blocks.mul_(encoded.scales.float().unsqueeze(-1)).flatten(-2)


@cache
def _rotation(block: int, device: torch.device) -> Tensor:
    """The normalised Hadamard matrix [K, K]: symmetric and orthogonal."""
    import torch

    matrix: Tensor = torch.ones(1, 1)
    while len(matrix) < block:
        matrix = torch.cat([torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)])
    normalised: Tensor = matrix / block**0.5
    return normalised.to(device)
