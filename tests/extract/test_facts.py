from __future__ import annotations

import json

import pytest
import torch

from eyas.extract.facts import Facts
from eyas.fidelity import StorageError
from eyas.shards import to_stored
from tests.extract.stored import LAYERS, agreement, facts, meta, states


def test_merged_by_hand() -> None:
    total = Facts.none(agreement(), LAYERS)
    total.merge(facts(largest=3.0))
    total.merge(facts(largest=1.5))
    assert total.largest == [3.0, 2.0, 0.5]
    assert [error.vectors for error in total.storage_errors] == [8, 8, 2]
    assert [error.mean for error in total.storage_errors] == pytest.approx([0.0, 0.01, 0.01])
    assert [error.worst for error in total.storage_errors] == [0.0, 0.02, 0.01]


def test_no_vector_has_no_error() -> None:
    assert Facts.none(agreement(), LAYERS).storage_errors == [StorageError(0, None, None)] * 3


def test_through_json() -> None:
    values = json.loads(json.dumps(facts().to_json()))
    assert Facts.from_json(values, agreement()) == facts()


def test_errors_of_a_storage_type() -> None:
    """Against the definition, vector by vector."""
    computed, total = states("a", tokens=6), Facts.none(agreement(), LAYERS)
    total.add_rounding(computed, to_stored(computed, meta("bfloat16")))
    for column, exact in enumerate([computed.aux[:, 0], computed.aux[:, 1], computed.last]):
        errors = [((row.bfloat16().float() - row).norm() / row.norm()).item() for row in exact]
        found = total.storage_errors[column]
        assert found.vectors == len(exact)
        assert found.mean == pytest.approx(sum(errors) / len(errors), rel=1e-4)
        assert found.worst == pytest.approx(max(errors), rel=1e-4)


def test_nothing_is_lost_in_the_type_of_the_target() -> None:
    computed, total = states("a"), Facts.none(agreement(), LAYERS)
    total.add_rounding(computed, to_stored(computed, meta()))
    assert total.storage_errors == [StorageError(5, 0.0, 0.0)] * 2 + [StorageError(3, 0.0, 0.0)]


def test_largest_values() -> None:
    total = Facts.none(agreement(), LAYERS)
    total.add_largest(torch.tensor([1.0, 5.0, 2.0]))
    total.add_largest(torch.tensor([3.0, 4.0, 2.5]))
    assert total.largest == [3.0, 5.0, 2.5]
