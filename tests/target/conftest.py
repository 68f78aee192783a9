from __future__ import annotations

from pathlib import Path

import pytest

from tests.tiny_target import write_target


@pytest.fixture(scope="session")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_target(tmp_path_factory.mktemp("targets") / "tiny-llama")


@pytest.fixture(scope="session")
def qwen3(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_target(
        tmp_path_factory.mktemp("targets") / "tiny-qwen3",
        "qwen3",
        tied=False,
        think=True,
        max_shard_size="20KB",
    )


@pytest.fixture(params=["llama", "qwen3"])
def folder(request: pytest.FixtureRequest) -> Path:
    path: Path = request.getfixturevalue(request.param)
    return path
