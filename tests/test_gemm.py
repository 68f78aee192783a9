"""oneDNN's products against torch's own in float64."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from eyas import gemm
from eyas.gemm import FastLinear, linear

Rows = tuple[int, ...]


def drawn(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def calls(monkeypatch: pytest.MonkeyPatch) -> list[Rows]:
    """Shapes of what oneDNN is given from now on."""
    product, shapes = gemm._product, []

    def watched(values: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        shapes.append(tuple(values.shape))
        return product(values, weight, bias)

    monkeypatch.setattr(gemm, "_product", watched)
    return shapes


@pytest.mark.parametrize("rows", [(), (1,), (5,), (2, 3), (700,)])
@pytest.mark.parametrize("biased", [False, True])
def test_products(rows: Rows, biased: bool) -> None:
    values, weight, bias = drawn(*rows, 48), drawn(33, 48), drawn(33) if biased else None
    expected = functional.linear(
        values.double(), weight.double(), None if bias is None else bias.double()
    ).float()
    found = linear(values, weight, bias)
    assert found.shape == (*rows, 33)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_no_rows() -> None:
    assert linear(drawn(2, 0, 8), drawn(5, 8)).shape == (2, 0, 5)


def test_views() -> None:
    """A block of the vocabulary, a transposed weight, every second row."""
    weight = drawn(8, 40).t()  # [40, 8]
    values = drawn(10, 8)[::2]
    expected = (values.double() @ weight[3:20].double().t()).float()
    torch.testing.assert_close(linear(values, weight[3:20]), expected, rtol=1e-5, atol=1e-5)


def test_a_weight_with_gaps_is_copied_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """oneDNN computes such a one with a plain loop."""
    given: list[Tensor] = []
    operation = torch.ops.mkldnn._linear_pointwise

    def watched(values: Tensor, weight: Tensor, *others: object) -> Tensor:
        given.append(weight)
        product: Tensor = operation(values, weight, *others)
        return product

    monkeypatch.setattr(torch.ops.mkldnn, "_linear_pointwise", watched)
    values, wide = drawn(5, 8), drawn(6, 16)
    for weight in (wide[:, :8], drawn(16, 6)[:8].t(), drawn(8, 12)[:, ::2].t()):
        expected = (values.double() @ weight.double().t()).float()
        torch.testing.assert_close(linear(values, weight), expected, rtol=1e-5, atol=1e-5)
    assert all(weight.is_contiguous() or weight.t().is_contiguous() for weight in given)
    assert len(given) == 3


def test_autocast_keeps_its_type(monkeypatch: pytest.MonkeyPatch) -> None:
    shapes = calls(monkeypatch)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert linear(drawn(4, 6), drawn(3, 6)).dtype == torch.bfloat16
    assert not shapes


@pytest.mark.parametrize("rows", [(), (7,), (2, 3)])
def test_gradients(rows: Rows) -> None:
    wide = [drawn(*rows, 12).double(), drawn(9, 12).double(), drawn(9).double()]
    narrow = [tensor.float().requires_grad_() for tensor in wide]
    for tensor in wide:
        tensor.requires_grad_()
    weights = drawn(*rows, 9)
    expected = torch.autograd.grad((functional.linear(*wide) * weights.double()).sum(), wide)
    found = torch.autograd.grad((linear(*narrow) * weights).sum(), narrow)
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs.float(), rtol=1e-5, atol=1e-5)


def test_a_frozen_weight_gets_no_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    shapes = calls(monkeypatch)
    values = drawn(4, 6).requires_grad_()
    linear(values, drawn(3, 6)).sum().backward()
    assert shapes == [(4, 6), (4, 3)], "forward, and the gradient of the values"
    assert values.grad is not None


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_types_get_torchs_own(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    shapes = calls(monkeypatch)
    values, weight = drawn(4, 6).to(dtype), drawn(3, 6).to(dtype)
    assert torch.equal(linear(values, weight), functional.linear(values, weight))
    assert not shapes


class Quantised(Tensor):
    """Says that it is float32, and is not what it seems."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is functional.linear:
            return functional.linear(args[0], args[1].as_subclass(Tensor) * 2)
        return super().__torch_function__(func, types, args, kwargs)


def test_subclasses_compute_as_they_wish(monkeypatch: pytest.MonkeyPatch) -> None:
    shapes = calls(monkeypatch)
    values, weight = drawn(4, 6), drawn(3, 6)
    expected = functional.linear(values, weight * 2)
    assert torch.equal(linear(values, weight.as_subclass(Quantised)), expected)
    module = torch.nn.Linear(6, 3, bias=False)
    module.weight = torch.nn.Parameter(weight.as_subclass(Quantised))
    with FastLinear():
        torch.testing.assert_close(module(values), expected)
    assert not shapes


def test_without_onednn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gemm, "_available", lambda: False)
    shapes = calls(monkeypatch)
    values, weight = drawn(4, 6), drawn(3, 6)
    assert torch.equal(linear(values, weight), functional.linear(values, weight))
    assert not shapes


def test_modules_inside_the_context(monkeypatch: pytest.MonkeyPatch) -> None:
    shapes = calls(monkeypatch)
    module = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.ReLU(), torch.nn.Linear(5, 2, bias=False))
    values = drawn(4, 6)
    expected = module(values)
    assert not shapes
    with FastLinear():
        found = module(values)
    assert shapes == [(4, 6), (4, 5)]
    torch.testing.assert_close(found, expected)
    module(values)
    assert len(shapes) == 2, "the context has ended"


def test_other_threads_are_not_touched(monkeypatch: pytest.MonkeyPatch) -> None:
    shapes = calls(monkeypatch)
    with FastLinear(), ThreadPoolExecutor(1) as pool:
        pool.submit(functional.linear, drawn(4, 6), drawn(3, 6)).result()
    assert not shapes
