from __future__ import annotations

import pytest

from tests.doctor.tiny_run import TinyRun, tiny_run


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> TinyRun:
    return tiny_run(tmp_path_factory.mktemp("run"))
