from __future__ import annotations

from pathlib import Path

import pytest

from eyas.train.fit import FitInputs
from tests.tiny_target import write_target

from .example import make_inputs


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_target(tmp_path_factory.mktemp("training") / "target")


@pytest.fixture(scope="session")
def inputs(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> FitInputs:
    return make_inputs(folder, tmp_path_factory.mktemp("hidden"))
