from __future__ import annotations

from typing import Any

import pytest

from eyas.config import load_section
from eyas.extract.params import ExtractParams


def test_default_params_are_valid() -> None:
    assert load_section("extract", ExtractParams).min_agreement == 1.0


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"backend": "sglang"}, "backend: 'sglang' is not one of transformers, vllm"),
        ({"dtype": "int3"}, "dtype: 'int3'"),
        ({"batch_tokens": 0}, "batch_tokens: 0"),
        ({"shard_bytes": 10}, "shard_bytes: 10"),
        ({"min_agreement": 1.1}, r"min_agreement: 1\.1"),
        ({"max_sampling_z": -1.0}, r"max_sampling_z: -1\.0"),
        ({"max_sampling_z": float("inf")}, "max_sampling_z: inf"),
        ({"max_sampling_z": float("nan")}, "max_sampling_z: nan"),
    ],
)
def test_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ExtractParams(**values)
