"""Root-mean-square norm with its gradient in closed form: two passes instead of autograd's ten.

Shapes: N rows, H width.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable


class RMSNorm(nn.Module):
    """Root-mean-square norm, computed in at least float32 as the engines do."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, hidden: Tensor) -> Tensor:
        """[..., H], in the type of `hidden`."""
        normed: Tensor = _RMSNorm.apply(  # type: ignore[no-untyped-call]
            hidden, self.weight, self.eps
        )
        return normed


def unit_rms(hidden: Tensor, eps: float) -> Tensor:
    """Rows [..., H] scaled to a root mean square of 1: RMSNorm without its weight, in the type of `hidden`.

    Where the rows are constants, the weight can move into the matrix that reads them. Then no product with that matrix's
    transpose is needed, only to learn the weight.
    """
    wide = hidden.to(torch.promote_types(hidden.dtype, torch.float32))
    return (wide * _scale(wide, eps)).to(hidden.dtype)


def _scale(wide: Tensor, eps: float) -> Tensor:
    """1 / rms of each row, [..., 1]."""
    length = torch.linalg.vector_norm(wide, dim=-1, keepdim=True)
    return torch.rsqrt(length.square() / wide.shape[-1] + eps)


class _RMSNorm(torch.autograd.Function):
    """(hidden [..., H], weight [H], eps) -> hidden / rms(hidden) * weight."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, eps: float) -> Tensor:
        wide = hidden.to(torch.promote_types(hidden.dtype, torch.float32))
        scale = _scale(wide, eps)
        ctx.save_for_backward(hidden, weight, scale)
        return (wide * scale).mul_(weight).to(hidden.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        hidden, weight, scale = ctx.saved_tensors
        unit = hidden * scale  # float32 at least
        upstream = upstream.to(unit.dtype)
        weight_gradient = hidden_gradient = None
        if ctx.needs_input_grad[1]:
            weight_gradient = (upstream * unit).flatten(0, -2).sum(dim=0).to(weight.dtype)
        if ctx.needs_input_grad[0]:
            slope = upstream * weight
            shared = (slope * unit).mean(dim=-1, keepdim=True)
            hidden_gradient = slope.sub_(unit.mul_(shared)).mul_(scale).to(hidden.dtype)
        return hidden_gradient, weight_gradient, None
