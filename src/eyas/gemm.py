"""Products of float32 matrices on CPUs, by oneDNN where torch would take MKL.

torch hands them to MKL, which keeps to AVX2 on processors that are not Intel's; oneDNN, which torch brings along, uses
AVX-512 wherever there is any. On an AMD Zen 5 core that is 250 instead of 108 GFLOP/s; other processors lose nothing.

Letters in shape comments: K inputs, N outputs.
"""

from __future__ import annotations

import os
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

PLAIN = (Tensor, torch.nn.Parameter)

KEPT_SHAPES = "8"
"""oneDNN and torch's layer above it each keep what they prepared for 1,024 shapes. Every batch has other row counts, so memory
would grow by gigabytes, and nothing comes back. Both read the environment at their first product."""
for _cache in ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"):
    os.environ.setdefault(_cache, KEPT_SHAPES)


def linear(values: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """As torch.nn.functional.linear, gradients included: [..., K], [N, K], [N] -> [..., N].

    Other types and devices, and subclasses of tensors, get torch's own. Sums are rounded in another order than MKL's.
    """
    if not _suits(values, weight, bias):
        return functional.linear(values, weight, bias)
    if torch.is_grad_enabled() and any(
        tensor is not None and tensor.requires_grad for tensor in (values, weight, bias)
    ):
        product: Tensor = _Linear.apply(values, weight, bias)  # type: ignore[no-untyped-call]
        return product
    return _product(values, weight, bias)


class FastLinear(TorchFunctionMode):
    """Inside, every torch.nn.functional.linear of this thread is `linear`, whichever module calls it."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Called by torch instead of its functions."""
        if func is functional.linear:
            return linear(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


class _Linear(torch.autograd.Function):
    """The same operation for the gradients, on transposed views."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(values, weight)
        return _product(values, weight, bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        values, weight = ctx.saved_tensors
        gradient = gradients[0].reshape(-1, len(weight))  # [R, N]
        needed = ctx.needs_input_grad
        of_values = _product(gradient, weight.t(), None).view(values.shape) if needed[0] else None
        of_weight = (
            _product(gradient.t(), values.reshape(-1, values.shape[-1]).t(), None) if needed[1] else None
        )
        return of_values, of_weight, gradient.sum(0) if needed[2] else None


def _suits(*tensors: Tensor | None) -> bool:
    return (
        _available()
        and not torch.is_autocast_enabled("cpu")
        and all(
            tensor is None
            or (
                type(tensor) in PLAIN  # quantised weights are subclasses that say float32
                and tensor.device.type == "cpu"
                and tensor.dtype == torch.float32
                and tensor.layout == torch.strided
                and tensor.numel() > 0
            )
            for tensor in tensors
        )
    )


@cache
def _available() -> bool:
    """Whether this build of torch has the operation; it is the one that torch.compile emits for CPUs."""
    return torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def _product(values: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    if not (weight.is_contiguous() or weight.t().is_contiguous()):
        weight = weight.contiguous()  # with gaps between rows oneDNN falls back to a loop, 500 times slower
    product: Tensor = torch.ops.mkldnn._linear_pointwise(values, weight, bias, "none", [], "")  # noqa: SLF001
    return product
