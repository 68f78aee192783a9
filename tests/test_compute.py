from __future__ import annotations

from typing import Any

import pytest

from eyas.compute import ComputeParams
from eyas.config import build, load_section
from eyas.errors import ConfigError


def test_default_params_are_valid() -> None:
    assert load_section("compute", ComputeParams).devices == "auto"


@pytest.mark.parametrize(
    "values", [{"devices": 2}, {"devices": "auto"}, {"threads": None}, {"device_map": "auto"}]
)
def test_good(values: dict[str, Any]) -> None:
    built = build("compute", ComputeParams, values)
    assert {key: getattr(built, key) for key in values} == values


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"accelerator": "gpus"}, "`compute.accelerator`: 'gpus' is not one of auto, cpu"),
        ({"devices": "all"}, "`compute.devices`: 'all' is neither auto nor a number"),
        ({"devices": 0}, "`compute.devices`: 0 is below 1"),
        ({"devices": True}, "`compute.devices`: Value 'True'"),
        ({"num_nodes": 0}, "`compute.num_nodes`: 0 is below 1"),
        ({"strategy": "fsdp"}, "`compute.strategy`: 'fsdp' is not one of auto, ddp"),
        ({"threads": -1}, "`compute.threads`: -1 is below 1"),
        ({"device_map": "all"}, "`compute.device_map`: 'all' is neither null nor one of auto"),
        ({"pass_tokens": 0}, "`compute.pass_tokens`: 0 is below 1"),
        ({"gpus": 1}, "`compute.gpus`"),
    ],
)
def test_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build("compute", ComputeParams, values)
