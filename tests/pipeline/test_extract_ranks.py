"""Extraction with two processes on this CPU, started by torchrun and by the stage itself."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from tests.extract.lives import computed
from tests.extract.project import ROOT, store_bytes, write_project

pytestmark = [pytest.mark.pipeline, pytest.mark.timeout(300)]

LIFE = str(ROOT / "tests" / "extract" / "rank_life.py")
STAGE = str(ROOT / "stages" / "extract.py")
TORCHRUN = [
    "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--max-restarts", "0",
]  # fmt: skip
SHARDS = {"train": 12, "val": 1, "eval": 3}


def environment(**more: str) -> dict[str, str]:
    paths = f"{ROOT / 'src'}:{ROOT}"
    return {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "POLARS_MAX_THREADS": "1", **more}


@contextmanager
def started(directory: Path, *command: str, **more: str) -> Iterator[subprocess.Popen[str]]:
    """A process in a group of its own; its output goes through `communicate`."""
    process = subprocess.Popen(
        [sys.executable, *command], cwd=directory, env=environment(**more), start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    try:
        yield process
    finally:
        for left in members(process.pid):
            left.kill()
        process.kill()
        process.wait()


def ended(directory: Path, *command: str, code: int = 0, **more: str) -> str:
    """Run to the end; returns the output."""
    with started(directory, *command, **more) as process:
        output, _ = process.communicate(timeout=100)
        assert process.returncode == code, output
        return output


def members(group: int) -> list[psutil.Process]:
    """Living processes of a session, without its zombies."""
    found = []
    for process in psutil.process_iter(["pid", "status"]):
        try:
            if os.getsid(process.pid) == group and process.info["status"] != psutil.STATUS_ZOMBIE:
                found.append(process)
        except ProcessLookupError:
            continue
    return found


def nobody_left(group: int) -> bool:
    deadline = time.monotonic() + 20
    while members(group):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


def devices(directory: Path, number: int) -> None:
    path = directory / "params.yaml"
    params: dict[str, Any] = yaml.safe_load(path.read_text())
    params["compute"] |= {"accelerator": "cpu", "devices": number}
    path.write_text(yaml.safe_dump(params))


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project that one process has extracted."""
    directory = tmp_path_factory.mktemp("alone")
    write_project(directory, SHARDS)
    devices(directory, 1)
    ended(directory, STAGE)
    return directory


@pytest.fixture
def two(alone: Path, tmp_path: Path) -> Path:
    """The same project before the stage, for two processes."""
    directory = tmp_path / "two"
    directory.mkdir()
    for name in ("models", "data/sequences"):
        shutil.copytree(alone / name, directory / name)
    shutil.copy(alone / "params.yaml", directory / "params.yaml")
    devices(directory, 2)
    return directory


def wait_for_shards(directory: Path, begun: int) -> list[list[str]]:
    """Until so many shards have been begun: rank, pid, split, number of each."""
    deadline = time.monotonic() + 120
    while len(lines := computed(directory)) < begun:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return [line.split() for line in lines]


def ranks_that_computed(directory: Path) -> set[str]:
    return {line.split()[0] for line in computed(directory)}


def test_torchrun_gives_the_bytes_of_one_process(alone: Path, two: Path) -> None:
    devices(two, 1)  # torchrun says how many there are
    ended(two, *TORCHRUN, LIFE, EYAS_TEST_DELAY_S="0.1")
    assert store_bytes(two) == store_bytes(alone)
    assert ranks_that_computed(two) == {"0", "1"}
    names = [line.split(maxsplit=2)[2] for line in computed(two)]
    assert len(names) == len(set(names)), "a shard was computed twice"


def test_a_group_that_torchrun_restarts_repeats_nothing_that_was_finished(alone: Path, two: Path) -> None:
    restarting = [*TORCHRUN[:-1], "1"]
    output = ended(two, *restarting, LIFE, EYAS_TEST_FAIL_RANK="1", EYAS_TEST_DELAY_S="0.1")
    assert output.count("error: planted") == 1
    lines = [line.split() for line in computed(two)]
    assert len({pid for _, pid, *_ in lines}) == 4
    names = [(split, number) for _, _, split, number in lines]
    assert len(names) - len(set(names)) <= 4, "each of the two had one in work and one being written"
    assert store_bytes(two) == store_bytes(alone)


def test_the_others_end_when_rank_0_is_killed_under_torchrun(two: Path) -> None:
    """Its store lives on, and nobody reads what they have to say."""
    with started(two, *TORCHRUN, LIFE, EYAS_TEST_DELAY_S="0.2") as process:
        lines = wait_for_shards(two, 4)
        began = time.monotonic()
        os.kill(next(int(pid) for rank, pid, *_ in lines if rank == "0"), signal.SIGKILL)
        process.communicate(timeout=60)
        assert nobody_left(process.pid)
        assert time.monotonic() - began < 20
    assert not (two / "data/hidden").exists()


def test_the_stage_starts_its_own_processes_and_a_dead_one_loses_its_shard_only(
    alone: Path, two: Path
) -> None:
    with started(two, LIFE, EYAS_TEST_DELAY_S="0.2") as process:
        lines = wait_for_shards(two, 6)
        os.kill(next(int(pid) for rank, pid, *_ in lines if rank == "1"), signal.SIGKILL)
        output, _ = process.communicate(timeout=60)
        assert process.returncode == 1, output
        assert "rank 1 ended with code -9" in output
        assert "Traceback" not in output
        assert nobody_left(process.pid)
    finished = {
        f"{path.parent.name} {int(path.stem.removeprefix('shard-'))}"
        for path in two.glob("data/.journal/extract/*/*/shard-*.json")
    }
    before = [line.split(maxsplit=2)[2] for line in computed(two)]
    assert len(set(before) - finished) <= 4, "each of the two had one in work and one being written"
    ended(two, LIFE)
    again = [line.split(maxsplit=2)[2] for line in computed(two)[len(before) :]]
    assert not set(again) & finished
    assert store_bytes(two) == store_bytes(alone)


@pytest.mark.stress
def test_an_error_of_one_process_ends_both_and_is_said_once(two: Path) -> None:
    with started(two, LIFE, EYAS_TEST_FAIL_RANK="1", EYAS_TEST_DELAY_S="0.1") as process:
        output, _ = process.communicate(timeout=120)
        assert process.returncode == 1, output
        assert nobody_left(process.pid)
    assert output.count("error: planted") == 1
    assert "(rank 1 on " in output
    assert "Traceback" not in output
    assert not (two / "data/hidden").exists()


@pytest.mark.stress
@pytest.mark.parametrize(
    ("signum", "whole_group", "code"),
    [
        pytest.param(signal.SIGINT, True, 130, id="Ctrl-C"),
        pytest.param(signal.SIGTERM, False, 143, id="SIGTERM to the first process"),
        pytest.param(signal.SIGKILL, False, -9, id="kill -9 of the first process"),
    ],
)
def test_signals_end_all_processes(two: Path, signum: signal.Signals, whole_group: bool, code: int) -> None:
    with started(two, LIFE, EYAS_TEST_DELAY_S="0.2") as process:
        wait_for_shards(two, 4)
        began = time.monotonic()
        if whole_group:
            os.killpg(process.pid, signum)
        else:
            process.send_signal(signum)
        output, _ = process.communicate(timeout=60)
        assert process.returncode == code, output
        assert nobody_left(process.pid)
        assert time.monotonic() - began < 20
        assert "Traceback" not in output
