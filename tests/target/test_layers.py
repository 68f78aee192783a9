from __future__ import annotations

import pytest

from eyas.target.layers import canonical_layers, check_layers, from_output_ids, to_output_ids


@pytest.mark.parametrize(
    ("num_layers", "expected"),
    [(7, [2, 3, 4]), (30, [2, 15, 27]), (32, [2, 16, 29]), (36, [2, 18, 33]), (61, [2, 30, 58])],
)
def test_canonical(num_layers: int, expected: list[int]) -> None:
    assert canonical_layers(num_layers) == expected


@pytest.mark.parametrize("num_layers", [1, 2, 4, 5, 6])
def test_too_few_layers(num_layers: int) -> None:
    with pytest.raises(ValueError, match="aux_layer_ids"):
        canonical_layers(num_layers)


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        pytest.param([], "empty", id="empty"),
        pytest.param([0, 2], "0 is outside 1..29", id="embedding"),
        pytest.param([2, 30], "30 is outside 1..29", id="after the last layer"),
        pytest.param([15, 2], "ascending", id="order"),
        pytest.param([2, 2, 15], "ascending", id="twice"),
    ],
)
def test_refused(ids: list[int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_layers(ids, 30)


def test_output_convention() -> None:
    assert to_output_ids([2, 18, 33]) == [1, 17, 32]
    assert from_output_ids([1, 17, 32]) == [2, 18, 33]
