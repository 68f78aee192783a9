from __future__ import annotations

import pytest
import torch

from eyas.errors import GateError
from eyas.extract.gate import check_states
from eyas.target.model import TargetStates

INF, NAN = float("inf"), float("nan")


def states_of(tokens: int, dtype: torch.dtype = torch.float32) -> TargetStates:
    random = torch.Generator().manual_seed(0)
    return TargetStates(
        aux=torch.randn(tokens, 3, 4, generator=random).to(dtype),
        last=torch.randn(tokens, 4, generator=random).to(dtype),
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_good_states_pass_and_their_largest_values_are_told(dtype: torch.dtype) -> None:
    states = states_of(3, dtype)
    states.aux[1, 2, 3] = -9.0
    states.last[2, 0] = 12.0
    largest = check_states("s", [1, 2, 3], states)
    assert largest.dtype == torch.float32
    assert largest[2:].tolist() == [9.0, 12.0]
    assert largest[:2].tolist() == states.aux.float().abs().amax(dim=(0, 2))[:2].tolist()


def test_views_pass() -> None:
    """As a backend gives them: rows of a batch, layers side by side."""
    batch = torch.randn(2, 5, 3, 4, generator=torch.Generator().manual_seed(1))
    check_states("s", [1, 2, 3, 4], TargetStates(aux=batch[1, :4], last=batch[0, 1:, 2]))


def test_the_same_state_at_the_same_tokens_is_right() -> None:
    one = states_of(1)
    check_states("one token", [1], one)
    repeated = TargetStates(aux=one.aux.expand(3, 3, 4), last=one.last.expand(3, 4))
    check_states("one token repeated", [7, 7, 7], repeated)
    with pytest.raises(GateError, match="aux state 0 is the same at every token"):
        check_states("different tokens", [7, 7, 8], repeated)


def test_equal_largest_values_are_not_equal_states() -> None:
    """Some targets have one value that dominates every row."""
    states = states_of(3)
    states.aux[:, 1, 0] = 50.0
    check_states("s", [1, 2, 3], states)


def spoil(column: int, rows: slice | int, value: float) -> TargetStates:
    states = states_of(3)
    states.aux[rows, column] = value
    return states


def spoil_last(rows: slice | int, channels: slice | int, value: float) -> TargetStates:
    states = states_of(3)
    states.last[rows, channels] = value
    return states


@pytest.mark.parametrize(
    ("states", "message"),
    [
        pytest.param(states_of(2), "2 rows of states for 3 tokens", id="short"),
        pytest.param(
            TargetStates(states_of(3).aux, states_of(4).last), "4 rows of states for 3 tokens", id="long last"
        ),
        pytest.param(spoil(1, slice(None), 0.0), "aux state 1 is zero at every token", id="zeroed layer"),
        pytest.param(
            spoil(2, slice(1, None), 0.0), "aux state 2 is zero at 2 tokens, the first is 1", id="zero rows"
        ),
        pytest.param(spoil(2, slice(None), 5.0), "aux state 2 is the same at every token", id="constant"),
        pytest.param(spoil(0, 1, NAN), "aux state 0 is not finite", id="nan"),
        pytest.param(spoil_last(1, 2, INF), "last state is not finite", id="inf"),
        pytest.param(spoil_last(1, 2, -INF), "last state is not finite", id="minus inf"),
        pytest.param(spoil_last(2, 0, NAN), "last state is not finite", id="one nan"),
        pytest.param(spoil_last(slice(None), slice(None), 1.0), "last state is the same", id="constant last"),
        pytest.param(
            spoil_last(2, slice(None), 0.0), "last state is zero at 1 tokens, the first is 2", id="zero"
        ),
    ],
)
def test_bad_states(states: TargetStates, message: str) -> None:
    with pytest.raises(GateError, match=message) as caught:
        check_states("set:7", [1, 2, 3], states)
    assert caught.value.where == "set:7"
