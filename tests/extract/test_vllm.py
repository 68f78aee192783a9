"""The backend with a small stand-in for vLLM (the real one: tests/pipeline)."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

import psutil
import pytest
import torch

from eyas.compute import ComputeParams
from eyas.errors import InputError, Interrupted, ServerError
from eyas.extract import vllm_replay
from eyas.extract.backend import Backend
from eyas.extract.backends import ServerSetting, load_backend
from eyas.extract.params import ExtractParams
from eyas.extract.vllm import VllmBackend, describe
from eyas.serving import vllm as serving
from tests.hand_made import profile
from tests.serving.example import server_params

FAKE = Path(__file__).with_name("vllm_stand_in.py")
CONFIG = {"model_type": "llama", "hidden_size": 8}
LAYERS = [2, 3, 6]
"""The hand-made target's aux layers and its last one."""

Make = Callable[..., VllmBackend]


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    """Make backends with the stand-in, behaving as named; they are closed at the end."""
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} {FAKE} "$@"\n')
    python.chmod(0o755)
    monkeypatch.setenv("EYAS_VLLM_PYTHON", str(python))
    monkeypatch.setenv("DVC_ROOT", str(tmp_path))
    monkeypatch.setattr(serving, "GRACE_S", 0.2)
    monkeypatch.setattr(vllm_replay, "_FIRST_PAUSE_S", 0.05)
    target = tmp_path / "target"
    target.mkdir()
    (target / "config.json").write_text(json.dumps(CONFIG))
    made: list[VllmBackend] = []

    def make(behaviour: str = "healthy", *, longest: int = 100, **server: Any) -> VllmBackend:
        monkeypatch.setenv("EYAS_STAND_IN", behaviour)
        made.append(
            VllmBackend(
                target, profile(), server_params(**server), longest=longest, folder=tmp_path / "files"
            )
        )
        return made[-1]

    yield make
    for backend in made:
        backend.close()


def children() -> list[psutil.Process]:
    return [
        child for child in psutil.Process().children(recursive=True) if child.status() != psutil.STATUS_ZOMBIE
    ]


def logs(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "data" / ".journal" / "logs").glob("extract-*.log"))


def test_states_come_in_order_and_close_leaves_only_the_log(make: Make, tmp_path: Path) -> None:
    backend: Backend = make()
    assert backend.name == "vllm"
    assert backend.versions == {"vllm": "0.32.0", "torch": "2.13.0+cpu"}
    assert backend.aux_layer_ids == LAYERS[:2]
    for sequences in ([[5, 6, 7], [9]], [[1] * 40]):
        for states, tokens in zip(backend.states(sequences), sequences, strict=True):
            expected = torch.tensor(tokens)[:, None, None] + torch.tensor(LAYERS)[:, None] + torch.zeros(8)
            assert torch.equal(states.aux, expected[:, :2])
            assert torch.equal(states.last, expected[:, 2])
    assert len(logs(tmp_path)) == 1
    backend.close()
    backend.close()
    assert children() == []
    assert not (tmp_path / "files").exists()


def test_the_section_chooses_it(make: Make, tmp_path: Path) -> None:
    make()
    setting = ServerSetting(server_params(), tmp_path / "files", 100, describe)
    arguments = (tmp_path / "target", profile(), ExtractParams(backend="vllm"), ComputeParams())
    backend = load_backend(*arguments, torch.device("cpu"), setting)
    assert backend.name == "vllm"
    with pytest.raises(InputError, match="the longest sequence has 128"):
        load_backend(*arguments, torch.device("cpu"), replace(setting, longest=128))


def test_nothing_is_started_before_the_first_states(make: Make, tmp_path: Path) -> None:
    backend = make()
    assert backend.versions["vllm"] == "0.32.0"
    backend.close()
    assert logs(tmp_path) == []
    assert not (tmp_path / "files").exists()


def arguments(log: Path) -> list[str]:
    line = next(line for line in log.read_text().splitlines() if line.startswith("arguments "))
    found: list[str] = json.loads(line.removeprefix("arguments "))
    return found


def test_the_server_has_the_context_that_the_sequences_need(make: Make, tmp_path: Path) -> None:
    extra = ["--enable-prefix-caching", "--speculative-config", '{"method": "ngram"}']
    make(longest=100, max_model_len=4096, extra_args=extra).states([[1]])
    found = arguments(logs(tmp_path)[0])
    assert found[found.index("--max-model-len") + 1] == "101"
    assert found.index("--no-enable-prefix-caching") > found.index("--enable-prefix-caching")
    last = len(found) - 1 - found[::-1].index("--speculative-config")
    assert json.loads(found[last + 1])["method"] == "extract_hidden_states"


def test_leftovers_of_a_killed_run_are_removed(make: Make, tmp_path: Path) -> None:
    old = tmp_path / "files" / "states-old"
    old.mkdir(parents=True)
    (old / "cmpl-1.safetensors").write_bytes(b"torn")
    backend = make()
    backend.states([[1, 2]])
    assert not old.exists()
    (folder,) = (tmp_path / "files").iterdir()
    assert list(folder.iterdir()) == []
    assert folder.stat().st_mode & 0o077 == 0


def test_a_target_that_vllm_refuses_is_an_input_error(make: Make) -> None:
    with pytest.raises(InputError, match="model class of this target can't give its hidden states"):
        make("refuses").states([[1]])
    assert children() == []


def test_a_sequence_that_does_not_fit_is_refused_before_anything_starts(make: Make) -> None:
    with pytest.raises(InputError, match="the longest sequence has 128 tokens"):
        make(longest=128)


def test_a_server_that_dies_is_told_with_its_log_and_another_run_goes_on(make: Make, tmp_path: Path) -> None:
    backend = make("dies", concurrency=1)
    backend.states([[1]])
    with pytest.raises(ServerError, match=r"has ended \(exit code 9\)(.|\n)*Killed by the test"):
        backend.states([[2], [3]])
    backend.close()
    assert children() == []
    assert len(make().states([[2], [3]])) == 2


def test_a_stop_signal_ends_the_wait_at_once(make: Make, tmp_path: Path) -> None:
    """Whatever the event loop is doing: the exception of the handler arrives as it is."""
    backend = make("hangs")

    def stop(signum: int, frame: FrameType | None) -> None:
        raise Interrupted(signum)

    def send() -> None:
        while not logs(tmp_path) or "asked" not in logs(tmp_path)[0].read_text():
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, stop)
    threading.Thread(target=send, daemon=True).start()
    started = time.monotonic()
    try:
        with pytest.raises(Interrupted):
            backend.states([[1, 2]])
    finally:
        signal.signal(signal.SIGUSR1, before)
    backend.close()
    assert time.monotonic() - started < 20
    assert children() == []


def test_a_description_of_a_sequence_is_short() -> None:
    assert describe([1, 2]) == "the sequence of 2 tokens that begins with [1, 2]"
    assert describe(range(1000)).endswith("1000 tokens that begins with [0, 1, 2, 3, 4, 5, 6, 7, ...]")
