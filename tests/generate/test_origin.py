"""The model that a server says it loaded, against the target's origin."""

from __future__ import annotations

import pytest

from eyas.errors import ServerError
from eyas.generate.origin import check_origins
from eyas.serving.endpoint import ModelInfo
from tests.generate.example import profile

URL = "http://10.0.0.1:8000/v1"


def served(root: str | None) -> dict[str, ModelInfo]:
    return {
        "http://10.0.0.2:8000/v1": ModelInfo("tiny", 512, "1", None),
        URL: ModelInfo("tiny", 512, "1", root),
    }


def test_another_hub_id_under_the_right_name_stops() -> None:
    target = profile(source="hub:Qwen/Qwen3-8B", revision="abc")
    with pytest.raises(
        ServerError, match=r"serves Qwen/Qwen3-8B-FP8 as tiny, the target is Qwen/Qwen3-8B"
    ) as caught:
        check_origins(served("Qwen/Qwen3-8B-FP8"), target)
    assert caught.value.where == URL
    assert "revision abc" in str(caught.value.hint)


@pytest.mark.parametrize("root", [None, "tiny", "Qwen/Qwen3-8B", "/models/Qwen3-8B-FP8", "models/target"])
def test_the_same_id_or_no_id_at_all_passes(root: str | None, caplog: pytest.LogCaptureFixture) -> None:
    check_origins(served(root), profile(source="hub:Qwen/Qwen3-8B", revision="abc"))
    assert caplog.text == ""


def test_another_owner_is_said(caplog: pytest.LogCaptureFixture) -> None:
    check_origins(served("checkpoints/v1"), profile(source="hub:Qwen/Qwen3-8B", revision="abc"))
    assert f"{URL}: the server serves checkpoints/v1 as tiny, the target is Qwen/Qwen3-8B" in caplog.text


def test_a_target_that_is_not_from_the_hub_has_no_id_to_compare() -> None:
    check_origins(served("Qwen/Qwen3-8B"), profile(source="folder:x"))
