from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from eyas.errors import ServerError
from eyas.serving.extraction import extraction, server_versions
from eyas.serving.plugin import eyas_states


def value(arguments: list[str], name: str) -> object:
    return json.loads(arguments[arguments.index(name) + 1])


def test_arguments_and_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    added = extraction([2, 15, 27, 30], Path("states"))
    arguments = list(added.arguments)
    assert arguments[0] == "--no-enable-prefix-caching"
    assert value(arguments, "--speculative-config") == {
        "method": "extract_hidden_states",
        "num_speculative_tokens": 1,
        "draft_model_config": {"hf_config": {"eagle_aux_hidden_state_layer_ids": [2, 15, 27, 30]}},
    }
    assert value(arguments, "--kv-transfer-config") == {
        "kv_connector": "StatesConnector",
        "kv_connector_module_path": "eyas_states",
        "kv_role": "kv_producer",
        "kv_connector_extra_config": {
            "shared_storage_path": str(tmp_path / "states"),
            "num_writer_threads": 8,
            "use_synchronization_lock": True,
            "allow_custom_save_path": False,
        },
    }
    assert dict(added.environment) == {"PYTHONPATH": str(Path(eyas_states.__file__).parent)}


@pytest.mark.parametrize("ids", [[15, 2, 30], [2, 2, 30]])
def test_ids_that_vllm_would_bring_into_another_order(ids: list[int], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not ascending without repetition"):
        extraction(ids, tmp_path)


def test_an_environment_without_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EYAS_VLLM_PYTHON", sys.executable)
    with pytest.raises(ServerError, match="has no vLLM"):
        server_versions()


def test_an_environment_that_does_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nexit 3\n")
    python.chmod(0o755)
    monkeypatch.setenv("EYAS_VLLM_PYTHON", str(python))
    with pytest.raises(ServerError, match="does not run"):
        server_versions()


def test_a_missing_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A running server is no way out here."""
    monkeypatch.setenv("DVC_ROOT", str(tmp_path))
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:8000/v1")
    with pytest.raises(ServerError, match="environment is missing") as caught:
        server_versions()
    assert "extract.backend to transformers" in str(caught.value.hint)
    assert "they come through files" in str(caught.value.hint)
