from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from eyas.storage import STORAGE_TYPES, Encoded, block_of, decode, encode


def hadamard(size: int) -> NDArray[np.float64]:
    """As a Kronecker power, unnormalised."""
    matrix = np.ones((1, 1))
    for _ in range(size.bit_length() - 1):
        matrix = np.kron(matrix, np.array([[1.0, 1.0], [1.0, -1.0]]))
    return matrix


def massive(tokens: int, size: int, seed: int = 0) -> torch.Tensor:
    """[T, H] as a target's layers give them: a few dimensions of some tokens are thousands of times larger."""
    random = torch.Generator().manual_seed(seed)
    values = torch.randn(tokens, size, generator=random) * 10
    values[0, 5], values[0, 70 % size], values[3 % tokens, 5] = 24_900.0, -8_000.0, 900.0
    return values


def relative(exact: torch.Tensor, kept: torch.Tensor) -> torch.Tensor:
    error: torch.Tensor = (kept.double() - exact.double()).norm(dim=-1) / exact.double().norm(dim=-1)
    return error


@pytest.mark.parametrize(
    ("size", "block"), [(576, 64), (4096, 64), (64, 64), (96, 32), (100, 4), (7, 1), (1, 1), (12, 4)]
)
def test_blocks_divide_the_vector(size: int, block: int) -> None:
    assert block_of(size) == block


def test_int8_against_numpy() -> None:
    """Codes and values by an independent calculation in double precision."""
    values = massive(40, 192).reshape(20, 2, 192)
    encoded = encode(values, "int8")
    assert encoded.scales is not None
    assert (encoded.codes.dtype, encoded.scales.dtype) == (torch.int8, torch.bfloat16)
    rotated = values.double().numpy().reshape(20, 2, 3, 64) @ hadamard(64) / 8
    scales = encoded.scales.double().numpy()
    np.testing.assert_allclose(scales, np.abs(rotated).max(-1) / 127, rtol=2**-8)
    codes = encoded.codes.numpy().reshape(20, 2, 3, 64).astype(np.float64)
    wanted = np.clip(rotated / scales[..., None], -127, 127)
    assert np.abs(codes - wanted).max() <= 0.5001
    np.testing.assert_allclose(
        decode(encoded).numpy().reshape(20, 2, 3, 64), codes @ hadamard(64) / 8 * scales[..., None], rtol=1e-6
    )


def test_decoding_rounds_once() -> None:
    """Sums of codes are exact, so that every machine, batch and order of addition gives the same bits."""
    encoded = encode(massive(50, 576), "int8")
    assert encoded.scales is not None
    sums = encoded.codes.double().unflatten(-1, (-1, 64)) @ torch.from_numpy(hadamard(64)) / 8
    assert torch.equal(sums.float().double(), sums)
    exact = (sums.float() * encoded.scales.float().unsqueeze(-1)).flatten(-2)
    assert torch.equal(decode(encoded), exact)
    one = Encoded(encoded.codes[7:8], encoded.scales[7:8])
    assert torch.equal(decode(one)[0], decode(encoded)[7])


def test_massive_values_do_not_drown_the_others() -> None:
    values = massive(200, 576)
    kept = decode(encode(values, "int8"))
    assert relative(values, kept).max() < 0.01
    ordinary = values[:, 128:]  # blocks without a massive value
    assert relative(ordinary, kept[:, 128:]).max() < 0.01
    plain_step = 24_900 / 127  # the step of a block that is not rotated: its other values would all become 0
    beside = torch.tensor([column for column in range(64) if column != 5])
    assert (kept[0, beside] - values[0, beside]).abs().max() < plain_step / 4


@settings(max_examples=60)
@given(
    seed=st.integers(0, 10_000),
    size=st.integers(1, 200),
    exponents=st.lists(st.integers(-20, 20), min_size=1, max_size=6),
)
def test_error_is_bounded_by_the_step(seed: int, size: int, exponents: list[int]) -> None:
    """Rotated values are off by half a step, bfloat16's rounding of the scale included, and rotating back keeps lengths."""
    random = torch.Generator().manual_seed(seed)
    scale = torch.tensor(exponents).repeat(size)[:size].float().exp2()
    values = torch.randn(5, size, generator=random) * scale
    encoded = encode(values, "int8")
    assert encoded.scales is not None
    block = block_of(size)
    error = (decode(encoded) - values).unflatten(-1, (-1, block)).norm(dim=-1)
    assert (error <= encoded.scales.float() * (block**0.5 * 0.51 + 1e-3)).all()


def test_zeros_and_tiny_values() -> None:
    assert torch.equal(decode(encode(torch.zeros(2, 64), "int8")), torch.zeros(2, 64))
    tiny = torch.full((1, 64), 1e-42)  # below what bfloat16 can scale
    assert decode(encode(tiny, "int8")).abs().max() <= 1e-38
    assert decode(encode(torch.zeros(0, 3, 64), "int8")).shape == (0, 3, 64)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_int8_refuses_what_is_not_finite(value: float) -> None:
    values = torch.zeros(4, 128)
    values[2, 100] = value
    with pytest.raises(ValueError, match="not finite"):
        encode(values, "int8")


def test_values_are_stored_as_they_are() -> None:
    values = massive(10, 64)
    assert decode(encode(values, "float32")).data_ptr() == values.data_ptr()
    assert torch.equal(decode(encode(values, "bfloat16")), values.bfloat16())


@pytest.mark.parametrize("dtype", STORAGE_TYPES)
@pytest.mark.parametrize("size", [1, 7, 64, 96, 576])
def test_bytes_of_a_vector(dtype: str, size: int) -> None:
    encoded = encode(torch.ones(3, size), dtype)
    scales = 0 if encoded.scales is None else encoded.scales.nbytes
    assert encoded.codes.nbytes + scales == 3 * STORAGE_TYPES[dtype].vector_bytes(size)


def test_half_precision_states_are_encoded_too() -> None:
    values = massive(30, 128)
    assert relative(values, decode(encode(values.bfloat16(), "int8"))).max() < 0.01
