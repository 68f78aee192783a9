from __future__ import annotations

from pathlib import Path

import pytest

from eyas.extract.backend import TransformersBackend
from eyas.target.model import TargetHead
from tests.extract.spoiled import good_backend
from tests.target.conftest import folder, llama, qwen3
from tests.tiny_target import profile_of, write_target

__all__ = ["folder", "llama", "qwen3"]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_target(tmp_path_factory.mktemp("t") / "tiny")


@pytest.fixture(scope="module")
def backend(tiny: Path) -> TransformersBackend:
    return good_backend(tiny)


@pytest.fixture(scope="module")
def head(tiny: Path) -> TargetHead:
    return TargetHead.read(tiny, profile_of(tiny), "float32")
