"""A scratch repository: params.yaml in a temporary working directory, no variables of the real environment."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.generate.example import GENERATE
from tests.generate.scripted import ScriptedServer
from tests.serving.example import SERVER

DATASETS = {name: {"source": "jsonl", "role": "train", "path": f"{name}.jsonl"} for name in ("a", "b", "c")}


@pytest.fixture(autouse=True)
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("DVC_ROOT", "OPENAI_BASE_URL", "OPENAI_API_KEY", "EYAS_VLLM_PYTHON"):
        monkeypatch.delenv(name, raising=False)
    write_params(tmp_path)
    return tmp_path


def write_params(directory: Path) -> None:
    params = {"datasets": DATASETS, "prompts": {"system": None}, "generate": GENERATE, "server": SERVER}
    (directory / "params.yaml").write_text(yaml.safe_dump(params))


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[ScriptedServer]:
    """The external server of the environment."""
    with ScriptedServer() as scripted:
        monkeypatch.setenv("OPENAI_BASE_URL", scripted.base_url)
        yield scripted
