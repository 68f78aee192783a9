from __future__ import annotations

import json
import logging
import subprocess
import sys
from pathlib import Path

import pytest

from eyas.errors import ServerError
from eyas.serving.drafted import PROBE, check_drafted_sampling, warn_of_drafted_sampling
from tests.serving.example import server_params


@pytest.fixture
def prints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A script that stands in for the interpreter of the server's environment."""
    python = tmp_path / "python"
    monkeypatch.setenv("EYAS_VLLM_PYTHON", str(python))
    return python


def write(python: Path, line: str) -> None:
    python.write_text(f"#!/bin/sh\n{line}\n")
    python.chmod(0o755)


def test_a_vllm_that_leaves_temperatures_unset_is_refused(prints: Path) -> None:
    write(prints, "echo INFO; echo false")
    with pytest.raises(ServerError, match="can't sample with a drafter") as caught:
        check_drafted_sampling(server_params())
    assert "vllm#55005" in caught.value.what
    assert "generate.temperature 0" in str(caught.value.hint)
    assert caught.value.where == str(prints)


def test_whoever_samples_answers_hears_it_early(prints: Path, caplog: pytest.LogCaptureFixture) -> None:
    write(prints, "echo false")
    with caplog.at_level(logging.WARNING):
        warn_of_drafted_sampling(server_params())
    (record,) = caplog.records
    assert "the engine stage will not run here" in record.message
    assert "dvc repro evaluate" in record.message
    write(prints, "echo true")
    caplog.clear()
    warn_of_drafted_sampling(server_params())
    assert caplog.records == []


def test_a_sound_one_is_let_through(prints: Path, caplog: pytest.LogCaptureFixture) -> None:
    write(prints, "echo true")
    check_drafted_sampling(server_params())
    assert caplog.records == []


@pytest.mark.parametrize("line", ["exit 3", "true", "echo what"])
def test_one_that_can_not_be_asked_is_let_through_with_a_warning(
    line: str, prints: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(prints, line)
    with caplog.at_level(logging.WARNING):
        check_drafted_sampling(server_params())
    assert "is not known" in caplog.text


def test_a_missing_environment(prints: Path) -> None:
    with pytest.raises(ServerError, match="environment is missing"):
        check_drafted_sampling(server_params())


TORCH = """
int32 = None

class Tensor(list):
    def tolist(self):
        return list(self)

    def fill(self, value):
        self[:] = [value] * len(self)

def zeros(count):
    return Tensor([0.0] * count)

def tensor(values, dtype=None):
    return Tensor(values)
"""
PLATFORM = """
class current_platform:
    @staticmethod
    def is_cpu():
        return {cpu}

    @staticmethod
    def import_kernels():
        pass
"""
KERNEL = "def _expand_kernel_impl(output, values, counts, *_):\n    "
UNSET = KERNEL + "pass\n"


@pytest.mark.parametrize(
    ("kernel", "cpu", "triton", "works"),
    [
        pytest.param(KERNEL + "output.fill(values[0])\n", True, False, True, id="set"),
        pytest.param(UNSET, True, False, False, id="left as it was"),
        pytest.param(KERNEL + "output.fill(1.0)\n", True, False, False, id="rounded"),
        pytest.param("", True, False, True, id="no such kernel any more"),
        pytest.param(UNSET, False, False, True, id="a GPU uses another one"),
        pytest.param(UNSET, True, True, True, id="so does Triton on a CPU"),
    ],
)
def test_what_the_probe_finds(
    kernel: str, cpu: bool, triton: bool, works: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {
        "torch.py": TORCH,
        "vllm/__init__.py": "",
        "vllm/platforms.py": PLATFORM.format(cpu=cpu),
        "vllm/triton_utils.py": f"HAS_TRITON = {triton}\n",
        "vllm/utils/__init__.py": "",
        "vllm/utils/cpu_triton_utils.py": kernel,
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    path = f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
    done = subprocess.run(
        [sys.executable, "-I", "-c", path + PROBE], capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout) is works
