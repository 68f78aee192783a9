"""Each planted fault must be caught, and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from eyas.errors import GateError
from eyas.extract.gate import Agreement, Disagreement, check_fixture, check_states
from eyas.target.model import TargetHead, TargetStates, capture
from tests.extract.greedy import make_extractor

SEQUENCES = [[1, 30, 31, 32, 2], [1, 50, 51], list(range(100, 260)), [9] * 20]
Fault = Callable[..., TargetStates]


def off_by_one(
    model: Any, ids: torch.Tensor, mask: torch.Tensor | None, layers: Sequence[int]
) -> TargetStates:
    return capture(model, ids, mask, [layer + 1 for layer in layers])


def one_layer_off(
    model: Any, ids: torch.Tensor, mask: torch.Tensor | None, layers: Sequence[int]
) -> TargetStates:
    return capture(model, ids, mask, [*layers[:-1], layers[-1] + 1])


def last_after_norm(
    model: Any, ids: torch.Tensor, mask: torch.Tensor | None, layers: Sequence[int]
) -> TargetStates:
    states = capture(model, ids, mask, layers)
    return replace(states, last=model.model.norm(states.last))


def last_from_one_layer_before(
    model: Any, ids: torch.Tensor, mask: torch.Tensor | None, layers: Sequence[int]
) -> TargetStates:
    states = capture(model, ids, mask, [*layers, len(model.model.layers) - 1])
    return TargetStates(aux=states.aux[:, :, :-1], last=states.aux[:, :, -1])


def sequences_swapped(
    model: Any, ids: torch.Tensor, mask: torch.Tensor | None, layers: Sequence[int]
) -> TargetStates:
    states = capture(model, ids, mask, layers)
    return TargetStates(aux=states.aux.flip(0), last=states.last.flip(0))


def test_fixture_passes(folder: Path) -> None:
    extractor = make_extractor(folder)
    check_fixture(extractor.backend, extractor.head, SEQUENCES)
    check_fixture(extractor.backend, extractor.head, SEQUENCES[:1])
    check_fixture(extractor.backend, extractor.head, [])


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        pytest.param(off_by_one, "aux state of layer 2", id="all layers off by one"),
        pytest.param(one_layer_off, "aux state of layer 5", id="one layer off by one"),
        pytest.param(last_after_norm, "final norm", id="norm twice"),
        pytest.param(last_from_one_layer_before, "final norm", id="last from layer N-1"),
        pytest.param(sequences_swapped, "aux state of layer 2", id="swapped sequences"),
    ],
)
def test_planted_fault(folder: Path, fault: Fault, message: str) -> None:
    extractor = make_extractor(folder)
    with pytest.raises(GateError, match=message):
        check_fixture(replace(extractor.backend, capture=fault), extractor.head, SEQUENCES)


class HeadWithoutNorm(TargetHead):
    def normed(self, last: torch.Tensor) -> torch.Tensor:
        return last


def test_missing_final_norm(folder: Path) -> None:
    extractor = make_extractor(folder)
    head = HeadWithoutNorm(**vars(extractor.head))
    with pytest.raises(GateError, match="final norm"):
        check_fixture(extractor.backend, head, SEQUENCES)


def states_of(tokens: int) -> TargetStates:
    random = torch.Generator().manual_seed(0)
    return TargetStates(
        aux=torch.randn(tokens, 3, 4, generator=random), last=torch.randn(tokens, 4, generator=random)
    )


def test_good_states_pass() -> None:
    check_states("s", [1, 2, 3], states_of(3))
    same = states_of(1)
    check_states("one token", [1], same)
    repeated = TargetStates(aux=same.aux.expand(3, 3, 4), last=same.last.expand(3, 4))
    check_states("one token repeated", [7, 7, 7], repeated)


def spoil(states: TargetStates, column: int, value: float) -> TargetStates:
    states.aux[:, column] = value
    return states


def spoil_last(states: TargetStates, value: float) -> TargetStates:
    states.last[1, 2] = value
    return states


@pytest.mark.parametrize(
    ("states", "message"),
    [
        pytest.param(states_of(2), "2 rows of states for 3 tokens", id="short"),
        pytest.param(spoil(states_of(3), 1, 0.0), "aux state 1 is zero", id="zeroed layer"),
        pytest.param(spoil(states_of(3), 2, 5.0), "aux state 2 is zero or the same", id="constant layer"),
        pytest.param(spoil(states_of(3), 0, float("nan")), "aux state 0 is not finite", id="nan"),
        pytest.param(spoil_last(states_of(3), float("inf")), "last state is not finite", id="inf"),
    ],
)
def test_bad_states(states: TargetStates, message: str) -> None:
    with pytest.raises(GateError, match=message) as caught:
        check_states("set:7", [1, 2, 3], states)
    assert caught.value.where == "set:7"


def wrong(count: int) -> list[Disagreement]:
    return [Disagreement("set:1", position, 5, 6, float(position)) for position in range(count)]


def test_agreement_at_the_limit_passes() -> None:
    agreement = Agreement({"a": 100}, 0.98)
    agreement.add("a", 10, wrong(2))
    agreement.check()


def test_agreement_stops_when_nothing_can_save_it() -> None:
    """3 of the first 10 are wrong, but 97 of 100 could still be right: too few already."""
    agreement = Agreement({"a": 100, "b": 10}, 0.98)
    agreement.add("b", 10, [])
    agreement.add("a", 10, wrong(3))
    with pytest.raises(GateError, match=r"3 of 10 generated tokens of a") as caught:
        agreement.check()
    assert "set:1 position 2: token 5, argmax 6, margin 2" in caught.value.what.split(";")[0]


def test_one_dataset_does_not_hide_another() -> None:
    agreement = Agreement({"large": 1000, "small": 4}, 0.9)
    agreement.add("large", 1000, [])
    agreement.add("small", 4, wrong(1))
    with pytest.raises(GateError, match="small"):
        agreement.check()


def test_no_minimum_lets_everything_pass() -> None:
    agreement = Agreement({"a": 3}, 0.0)
    agreement.add("a", 3, wrong(3))
    agreement.check()
