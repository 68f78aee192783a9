"""Hidden states of the default target from real vLLM equal those of transformers, also through the stage."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
import yaml
from stages import extract
from torch import Tensor

from eyas import paths
from eyas.extract.backend import TransformersBackend
from eyas.extract.table import Sequences
from eyas.serving.vllm import server_python
from eyas.shards import HiddenStore
from eyas.target.bring import bring_target
from eyas.target.model import load_target
from eyas.target.params import TargetParams
from eyas.target.profile import build_profile
from eyas.target.spec import TargetProfile
from tests.extract.drawing import answered
from tests.extract.greedy import write_table

pytestmark = [pytest.mark.pipeline, pytest.mark.timeout(600)]

SOURCES = Path(__file__).parents[2] / "src"
PROMPTS = [1, 5, 17, 40, 300, 2, 64, 15]
ANSWERS = [0, 12, 9, 16, 8, 14, 1, 17]
"""The 300 tokens are computed in chunks of 128; 16 is vLLM's block size."""
SERVER: dict[str, Any] = {
    "concurrency": 5,
    "max_attempts": 3,
    "max_num_seqs": 4,
    "start_timeout_s": 400.0,
    "extra_args": ["--enforce-eager", "--max-num-batched-tokens", "128"],
}
TOLERANCE = 2e-4
"""Largest difference of a vector relative to its length, both in float32; measured: 3e-5. Another layer: 0.5 and more."""


@dataclass(frozen=True)
class Held:
    """A working directory with the default target, and sequences that it answered greedily."""

    profile: TargetProfile
    sequences: Sequences
    transformers: TransformersBackend


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Held]:
    monkeypatch.setenv("EYAS_VLLM_PYTHON", str(server_python()))
    params = yaml.safe_load(Path("params.yaml").read_text())
    params["server"] |= SERVER
    params["extract"] |= {"backend": "vllm", "dtype": "float32", "batch_tokens": 300, "shard_bytes": 1 << 20}
    monkeypatch.chdir(tmp_path)
    Path("params.yaml").write_text(yaml.safe_dump(params))
    paths.TARGET.mkdir(parents=True)
    target = TargetParams(**params["target"])
    profile = build_profile(paths.TARGET, bring_target(target, paths.TARGET), target)
    profile.write(paths.TARGET_PROFILE)
    model = load_target(paths.TARGET, "float32")
    sequences = greedy_answers(model)
    some = [1, 0, 3, 2]
    subset = answered([sequences.ids(index) for index in some], [PROMPTS[index] for index in some])
    for split in paths.SPLITS:
        write_table(sequences if split == "train" else subset, paths.sequences(split))
    yield Held(profile, sequences, TransformersBackend(model, profile.aux_layer_ids, torch.device("cpu")))
    shutil.rmtree(paths.TARGET)  # half a gigabyte


@torch.inference_mode()
def greedy_answers(model: Any) -> Sequences:
    random = torch.Generator().manual_seed(3)
    rows = []
    for prompt, answer in zip(PROMPTS, ANSWERS, strict=True):
        ids = torch.randint(1000, 20000, (1, prompt), generator=random)
        if answer:
            ids = model.generate(
                ids, attention_mask=torch.ones_like(ids), do_sample=False, min_new_tokens=answer, max_new_tokens=answer
            )  # fmt: skip
        rows.append(ids[0].tolist())
    return answered(rows, PROMPTS)


def far(ours: Tensor, theirs: Tensor) -> float:
    """Largest difference of vectors [..., H] relative to their length."""
    return float(((ours - theirs).norm(dim=-1) / theirs.norm(dim=-1)).max())


def living() -> list[psutil.Process]:
    """Processes of this project beside our own: the stage's, the server's."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.pid != os.getpid() and process.cwd() == str(Path.cwd()):
                found.append(process)
    return found


def kill_the_engine_behind_the_first_shard() -> None:
    """vLLM's API server gives the process that computes a title."""
    deadline = time.monotonic() + 500
    while not list(Path("data/.journal/extract").rglob("shard-*.json")) and time.monotonic() < deadline:
        time.sleep(0.01)
    for process in living():
        if "EngineCore" in " ".join(process.cmdline()):
            process.kill()


def shards(folder: Path) -> dict[str, int]:
    """When each finished shard of a journal or of the stores was written; by split and name."""
    found = list(folder.rglob("shard-*.safetensors"))
    done = [path for path in found if path.with_suffix(".json").exists() or folder == paths.HIDDEN]
    return {f"{path.parent.name}/{path.name}": path.stat().st_mtime_ns for path in done}


def test_a_killed_server_is_told_and_the_next_run_completes_the_states_of_transformers(project: Held) -> None:
    threading.Thread(target=kill_the_engine_behind_the_first_shard, daemon=True).start()
    stopped = subprocess.run(
        [sys.executable, Path(extract.__file__)], env=os.environ | {"PYTHONPATH": str(SOURCES)}, check=False,
        capture_output=True, text=True,
    )  # fmt: skip
    assert stopped.returncode == 1, stopped.stderr
    assert "error: the vLLM server has ended (exit code" in stopped.stderr
    (log,) = paths.logs().iterdir()
    assert f"where: {log}" in stopped.stderr
    assert living() == []
    assert not list(Path("data").rglob("states-*"))
    assert not list(paths.HIDDEN.rglob("*.*"))
    before = shards(paths.journal("extract"))
    assert 0 < len(before) < 4

    extract.main()
    assert living() == []
    assert not list(Path("data").rglob("states-*"))
    assert before.items() <= shards(paths.HIDDEN).items()  # not computed again
    report = json.loads((paths.REPORTS / "extraction.json").read_text())
    for split in paths.SPLITS:
        for dataset in report[split]["datasets"].values():
            assert dataset["agreement"] == 1.0
    check_store(project)


def check_store(project: Held) -> None:
    """Against our own capture, the model's own hidden states, and what the states must not be."""
    store = HiddenStore(paths.hidden("train"))
    store.verify()
    store.check_target(project.profile)
    assert store.meta.backend == "vllm"
    assert set(store.meta.versions) == {"torch", "vllm"}
    for index, states in enumerate(store):
        row = project.sequences.ids(index)
        (own,) = project.transformers.states([row])
        hidden_states = project.transformers.reference(row)
        assert far(states.aux, own.aux) < TOLERANCE
        for column, layer in enumerate(project.profile.aux_layer_ids):
            assert far(states.aux[:, column], hidden_states[layer]) < TOLERANCE
            if len(row) > 1:  # the first token's state, of huge length, hardly changes from layer to layer
                assert far(states.aux[:, column], hidden_states[layer - 1]) > 100 * TOLERANCE
                assert far(states.aux[:, column], hidden_states[layer + 1]) > 100 * TOLERANCE
        if len(positions := states.label_positions.long()):
            normed = project.transformers.model.model.norm(states.last)
            assert far(states.last, own.last[positions]) < TOLERANCE
            assert far(normed, hidden_states[-1][positions]) < TOLERANCE
            assert far(states.last, hidden_states[-1][positions]) > 100 * TOLERANCE
