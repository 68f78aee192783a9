from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from eyas.fidelity import StorageError, relative_errors, storage_error
from eyas.states import SequenceStates, from_stored, to_stored
from tests.stores import META, make_states


def scaled(states: SequenceStates, factors: list[float], last: float) -> SequenceStates:
    aux = states.aux * torch.tensor(factors)[None, :, None]
    return replace(states, aux=aux, last=states.last * last)


def test_errors_by_hand() -> None:
    long, short = make_states("a", [False] * 3 + [True] * 5), make_states("b", [False, True], 1)
    kept = [scaled(long, [1.0, 1.25, 1.0], 0.5), scaled(short, [1.0, 1.5, 1.0], 1.0)]
    errors = storage_error([long, short], kept, [2, 4, 5])
    assert list(errors) == ["2", "4", "5", "last"]
    assert errors["2"] == errors["5"] == StorageError(10, 0.0, 0.0)
    assert errors["4"].vectors == 10
    assert errors["4"].mean == pytest.approx((8 * 0.25 + 2 * 0.5) / 10, rel=1e-6)
    assert errors["4"].worst == pytest.approx(0.5, rel=1e-6)
    assert errors["last"].vectors == 4  # the short one has no label
    assert errors["last"].mean == errors["last"].worst == pytest.approx(0.5, rel=1e-6)


def test_no_vector_has_no_error() -> None:
    states = make_states("b", [False, True])
    assert storage_error([states], [states], [2, 4, 5])["last"] == StorageError(0, None, None)
    assert storage_error([], [], [2]) == dict.fromkeys(["2", "last"], StorageError(0, None, None))


def test_zero_vectors_count_without_error() -> None:
    states = scaled(make_states("a", [True] * 4), [0.0, 1.0, 1.0], 1.0)
    assert storage_error([states], [states], [2, 4, 5])["2"] == StorageError(4, 0.0, 0.0)


@pytest.mark.parametrize(("dtype", "most"), [("float32", 0.0), ("bfloat16", 2**-8), ("int8", 0.02)])
def test_errors_of_the_storage_types(dtype: str, most: float) -> None:
    states = make_states("a", [False] * 10 + [True] * 30, hidden_size=128)
    kept = from_stored(to_stored(states, replace(META, dtype=dtype)))
    for errors in storage_error([states], [kept], META.aux_layer_ids).values():
        assert errors.mean is not None
        assert errors.worst is not None
        assert 0.1 * most <= errors.mean <= errors.worst <= most


def test_other_sequences_are_refused() -> None:
    with pytest.raises(ValueError, match="a is compared with b"):
        relative_errors(make_states("a", [True] * 3), make_states("b", [True] * 3))
