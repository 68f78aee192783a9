from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from eyas.errors import ArtifactError, InputError, ServerError
from eyas.extract.vllm_limits import check_limits, explained, longest_context
from tests.hand_made import profile

MLA: dict[str, dict[str, Any]] = {
    "deepseek": {"model_type": "deepseek_v3", "kv_lora_rank": 512},
    "kimi inside a multimodal one": {
        "model_type": "kimi_k25",
        "text_config": {"model_type": "kimi_k2", "kv_lora_rank": 512},
    },
}
ORDINARY: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama"},
    "multimodal": {"model_type": "qwen3_vl", "text_config": {"model_type": "qwen3_vl_text"}},
    "no rank": {"model_type": "deepseek", "kv_lora_rank": None},
    "computed as ordinary attention": {"model_type": "minicpm3", "kv_lora_rank": 256},
}


def write(tmp_path: Path, config: dict[str, Any]) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(config))
    return tmp_path


@pytest.mark.parametrize("name", MLA)
def test_latent_attention_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match="latent attention") as caught:
        check_limits(write(tmp_path, MLA[name]), profile(), 10)
    assert "extract.backend to transformers" in str(caught.value)


@pytest.mark.parametrize("name", ORDINARY)
def test_ordinary_attention_is_not(tmp_path: Path, name: str) -> None:
    check_limits(write(tmp_path, ORDINARY[name]), profile(), 10)


def test_the_longest_sequence_needs_room_for_one_more_token(tmp_path: Path) -> None:
    directory = write(tmp_path, ORDINARY["llama"])
    check_limits(directory, profile(max_position_embeddings=128), 127)
    with pytest.raises(
        InputError, match=r"128 tokens; vLLM generates one more, and the target holds 128"
    ) as caught:
        check_limits(directory, profile(max_position_embeddings=128), 128)
    assert "reassemble.max_length to 127" in str(caught.value)


@pytest.mark.parametrize(
    ("scaling", "context"),
    [
        (None, 128),
        ({"rope_type": "linear", "factor": 4.0}, 512),
        ({"type": "dynamic", "factor": 2}, 256),
        ({"rope_type": "yarn", "factor": 4.0}, 128),
        ({"rope_type": "llama3", "factor": 32.0}, 128),
        ({"rope_type": "linear", "factor": None}, 128),
    ],
)
def test_scaled_ropes(scaling: dict[str, Any] | None, context: int) -> None:
    assert longest_context(profile(max_position_embeddings=128, rope_scaling=scaling)) == context


def test_a_missing_config(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="config can't be read"):
        check_limits(tmp_path, profile(), 10)


@pytest.mark.parametrize(
    ("said", "what"),
    [
        (
            "RuntimeError: Model does not support EAGLE3 interface but aux_hidden",
            "can't give its hidden states",
        ),
        ("isolated in its own group (MLA verifiers are unsupported).", "kind of attention"),
        ("Hidden-states block-size mismatch: derived 16 but", "hybrid target"),
        ("ValueError: Model architectures ['X'] are not supported for now. Supported", "architecture"),
        ("User-specified max_model_len (9) is greater than the derived max_model_len (", "longest sequence"),
    ],
)
def test_the_log_of_a_server_that_refused_is_understood(tmp_path: Path, said: str, what: str) -> None:
    log = tmp_path / "extract.log"
    log.write_text(f"INFO starting\n{said}\nsome more lines\n")
    error = explained(ServerError("the vLLM server has ended (exit code 1)"), log)
    assert isinstance(error, InputError)
    assert what in error.what
    assert error.where == str(log)
    assert "extract.backend to transformers" in str(error.hint)


def test_a_cache_that_is_too_small_is_no_fault_of_the_target(tmp_path: Path) -> None:
    log = tmp_path / "extract.log"
    log.write_text(
        "(2.5 GiB KV cache is needed, which is larger than the available KV cache memory (1.0 GiB)"
    )
    error = explained(ServerError("ended"), log)
    assert isinstance(error, ServerError)
    assert "server.kv_cache_gib" in str(error.hint)


def test_other_failures_stay_as_they_are(tmp_path: Path) -> None:
    error = ServerError("the vLLM server has ended")
    (tmp_path / "log").write_text("ImportError: libcudart")
    assert explained(error, tmp_path / "log") is error
    assert explained(error, tmp_path / "none") is error
