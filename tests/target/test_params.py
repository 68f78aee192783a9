from __future__ import annotations

from typing import Any

import pytest

from eyas.config import load_section
from eyas.target.params import TargetParams


def test_default_params_are_valid() -> None:
    params = load_section("target", TargetParams)
    assert params.source == "gguf_wheel"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        pytest.param({"source": "zip"}, "source: 'zip'", id="source"),
        pytest.param({"name": ""}, "name: ''", id="name"),
        pytest.param({"dtype": "int8"}, "dtype: 'int8'", id="dtype"),
        pytest.param({"file": "x.gguf"}, "file: 'x.gguf'", id="file of a folder"),
        pytest.param({"source": "gguf_wheel", "revision": "1"}, "file: None", id="wheel without file"),
        pytest.param({"source": "hub"}, "revision: null", id="moving hub revision"),
        pytest.param({"revision": "main"}, "revision: 'main'", id="revision of a folder"),
    ],
)
def test_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TargetParams(**{"source": "folder", "name": "models/x", **values})
