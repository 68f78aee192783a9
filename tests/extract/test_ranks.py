"""Ranks as threads of this process; as processes in tests/pipeline/test_extract_ranks.py."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from eyas.compute import ComputeParams
from eyas.errors import ConfigError, EyasError, GateError, Interrupted
from eyas.extract import launch, ranks
from eyas.extract.launch import device_of, start
from eyas.extract.ranks import Alone, Team, end_children

CPU = torch.device("cpu")


def make_teams(size: int) -> list[Team]:
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    server = TCPStore("127.0.0.1", 0, size, True, wait_for_workers=False)
    stores = [server, *(TCPStore("127.0.0.1", server.port, size, False) for _ in range(1, size))]
    return [Team(CPU, rank, size, size, store, {}) for rank, store in enumerate(stores)]


def together(teams: list[Team], work: Callable[[Team], Any]) -> list[Any]:
    """What each rank returns or raises."""

    def run(team: Team) -> Any:
        try:
            with team:
                return work(team)
        except BaseException as error:  # noqa: BLE001 -- also SystemExit and Interrupted
            return error

    with ThreadPoolExecutor(len(teams)) as pool:
        return list(pool.map(run, teams))


def test_alone() -> None:
    alone = Alone(CPU)
    done: list[str] = []
    with alone:
        alone.first("a", lambda: done.append("a"))
        assert list(alone.claims(3)) == [0, 1, 2]
        assert alone.count("x", 2) == 2
        assert alone.count("x", 3) == 5
        alone.check()
        alone.meet("end")
    assert done == ["a"]


def test_every_number_is_claimed_once_and_a_slow_rank_gets_fewer() -> None:
    def work(team: Team) -> list[int]:
        claimed = []
        for number in team.claims(30):
            claimed.append(number)
            time.sleep(0.03 if team.rank == 2 else 0.002)
        return claimed

    claimed = together(make_teams(3), work)
    assert sorted(number for numbers in claimed for number in numbers) == list(range(30))
    assert all(numbers == sorted(numbers) for numbers in claimed)
    assert 1 <= len(claimed[2]) < len(claimed[0])


def test_the_others_wait_for_what_rank_0_does_first() -> None:
    order: list[str] = []

    def make() -> None:
        time.sleep(0.2)
        order.append("made")

    def work(team: Team) -> None:
        team.first("folder", make)
        order.append("used")

    together(make_teams(3), work)
    assert order == ["made", "used", "used", "used"]


def test_meeting_waits_for_the_last_and_looks_around_meanwhile() -> None:
    looks: list[int] = []
    arrived: list[int] = []

    def work(team: Team) -> int:
        if team.rank == 1:
            time.sleep(0.4)
            arrived.append(1)
        team.meet("end", lambda: looks.append(team.rank))
        return len(arrived)

    assert together(make_teams(2), work) == [1, 1]
    assert 0 in looks


def test_counts_are_shared() -> None:
    def work(team: Team) -> int:
        team.first("tokens", lambda: None)  # the name of a number is nothing but that
        team.count("tokens", 10 * (team.rank + 1))
        team.meet("tokens")
        return team.count("tokens", 0)

    assert together(make_teams(3), work) == [60, 60, 60]


def failing(rank: int, error: BaseException) -> Callable[[Team], None]:
    def work(team: Team) -> None:
        if team.rank == rank:
            raise error
        team.meet("end")

    return work


def test_an_error_of_one_rank_ends_all_and_rank_0_says_it() -> None:
    error = GateError("the aux state 1 is zero", where="set:7", hint="report it")
    first, second, third = together(make_teams(3), failing(2, error))
    assert isinstance(first, EyasError)
    assert first.what == "the aux state 1 is zero"
    assert "set:7 (rank 2 on " in str(first.where)
    assert first.hint == "report it"
    assert isinstance(second, SystemExit)
    assert second.code == 1
    assert isinstance(third, SystemExit), "it would be shown twice"
    assert third.code == 1


def test_an_error_of_rank_0_ends_the_others() -> None:
    error = GateError("no")
    first, second = together(make_teams(2), failing(0, error))
    assert first is error
    assert isinstance(second, SystemExit)


def test_an_unknown_error_keeps_its_traceback_and_is_told() -> None:
    first, second = together(make_teams(2), failing(1, ZeroDivisionError("division by zero")))
    assert isinstance(first, EyasError)
    assert first.what == "ZeroDivisionError: division by zero"
    assert isinstance(second, ZeroDivisionError)


def test_a_rank_that_is_stopped_stops_the_others() -> None:
    first, second = together(make_teams(2), failing(1, Interrupted(signal.SIGTERM)))
    assert isinstance(first, Interrupted)
    assert first.exit_code == 143
    assert isinstance(second, SystemExit)
    assert second.code == 143


def test_the_exit_code_of_the_error_is_kept() -> None:
    error = EyasError("in use")
    error.exit_code = 75
    _, second = together(make_teams(2), failing(1, error))
    assert isinstance(second, SystemExit)
    assert second.code == 75


def test_a_rank_whose_error_nobody_reads_shows_it_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks, "HEARD_S", 0.3)
    error = GateError("no")

    def work(team: Team) -> None:
        if team.rank == 1:
            raise error
        time.sleep(1.0)  # rank 0 is in a long computation

    assert together(make_teams(2), work)[1] is error


def test_a_rank_that_is_stopped_waits_for_nobody() -> None:
    """torchrun stops the others when rank 0 was killed, and its store lives on: nobody will ever read the message."""
    _, second = make_teams(2)
    began = time.monotonic()
    with pytest.raises(SystemExit) as caught, second:
        raise Interrupted(signal.SIGTERM)
    assert caught.value.code == 143
    assert time.monotonic() - began < 5


def test_without_rank_0_the_others_end() -> None:
    first, second = make_teams(2)
    del first
    with pytest.raises(EyasError, match="rank 0 is gone"), second:
        second.meet("end")


def child(*code: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-S", "-c", "\n".join(code)])


def test_a_started_rank_that_dies_ends_the_run() -> None:
    (team,) = make_teams(1)
    team.children = {1: child("import time; time.sleep(60)"), 2: child("import time; time.sleep(60)")}
    team.check()
    team.children[1].kill()
    team.children[1].wait()
    with pytest.raises(EyasError, match="rank 1 ended with code -9"), team:
        team.check()
    assert team.children[2].returncode == -signal.SIGTERM


def test_started_ranks_may_end_by_themselves() -> None:
    ended = {1: child("import time; time.sleep(0.3)")}
    end_children(ended, kindly=True)
    assert ended[1].returncode == 0


def test_a_started_rank_that_does_not_end_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks, "END_S", 0.5)
    deaf = child("import signal, time", "signal.signal(signal.SIGTERM, signal.SIG_IGN)", "time.sleep(60)")
    time.sleep(0.3)
    end_children({1: deaf}, kindly=False)
    assert deaf.returncode == -signal.SIGKILL


@pytest.fixture
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "RANK"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(torch, "set_num_threads", lambda threads: None)


@pytest.mark.usefixtures("no_launcher")
def test_one_process_needs_no_store() -> None:
    with start(ComputeParams(accelerator="cpu")) as alone:
        assert isinstance(alone, Alone)
        assert alone.device == CPU


@pytest.mark.usefixtures("no_launcher")
@pytest.mark.parametrize(
    ("compute", "one_process", "message"),
    [
        (ComputeParams(num_nodes=2), None, "was not started by torchrun"),
        (ComputeParams(devices=2, device_map="auto"), None, "spreads one process over all GPUs"),
        (ComputeParams(devices=2), "the server spreads", "2 processes are too many: the server spreads"),
    ],
)
def test_impossible_settings(compute: ComputeParams, one_process: str | None, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        start(compute, one_process=one_process)


@pytest.mark.usefixtures("no_launcher")
def test_torchrun_with_a_backend_for_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("LOCAL_RANK", "0"), ("WORLD_SIZE", "4"), ("LOCAL_WORLD_SIZE", "4")):
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match="4 processes are too many"):
        start(ComputeParams(), one_process="x")


@pytest.fixture
def agent(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """torchrun's store, and a process of torchrun's, as this one is after a call: rank 0 of two."""
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    server = TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
    monkeypatch.setattr(Team, "meet", lambda self, name: None)  # the other one is not there

    def become(restarts: int, nodes: int, port: int = server.port) -> None:
        values = {
            "RANK": 0, "LOCAL_RANK": 0, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2 // nodes, "MASTER_PORT": port,
            "TORCHELASTIC_RESTART_COUNT": restarts,
        }  # fmt: skip
        for name, value in values.items():
            monkeypatch.setenv(name, str(value))
        monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
        monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")

    yield become
    del server


CPU_ONLY = ComputeParams(accelerator="cpu")


@pytest.mark.usefixtures("no_launcher")
def test_a_restarted_group_of_one_node_begins_anew(agent: Callable[..., None]) -> None:
    for restarts in range(3):
        agent(restarts, nodes=1)
        with start(CPU_ONLY) as team:
            assert list(team.claims(2)) == [0, 1]
            team.check()


@pytest.mark.usefixtures("no_launcher")
def test_a_restarted_group_of_several_nodes_is_refused(agent: Callable[..., None]) -> None:
    """Its own failure is counted; that of another node, or a node that joins, is not."""
    agent(1, nodes=2)
    with pytest.raises(ConfigError, match="torchrun has restarted") as caught:
        start(CPU_ONLY)
    assert "--max-restarts 0" in str(caught.value.hint)
    agent(0, nodes=2)
    with start(CPU_ONLY):
        pass
    with pytest.raises(ConfigError, match="torchrun has restarted"):
        start(CPU_ONLY)


@pytest.mark.usefixtures("no_launcher")
def test_a_group_that_shrank_to_one_node_is_refused(agent: Callable[..., None]) -> None:
    agent(0, nodes=2)
    with start(CPU_ONLY):
        pass
    agent(0, nodes=1)
    with pytest.raises(ConfigError, match="torchrun has restarted"):
        start(CPU_ONLY)


@pytest.mark.usefixtures("no_launcher")
def test_with_another_launcher_rank_0_serves_the_store(
    agent: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    agent(0, nodes=1, port=port)
    monkeypatch.delenv("TORCHELASTIC_USE_AGENT_STORE")
    with start(CPU_ONLY) as team:
        assert list(team.claims(1)) == [0]


@pytest.mark.usefixtures("no_launcher")
def test_a_process_whose_rank_0_was_killed_before_they_met(
    agent: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    agent(0, nodes=1)
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv(launch.FIRST_PID, str(os.getpid()))  # our parent is another one
    with pytest.raises(EyasError, match="rank 0 is gone: it ended while this process was started"):
        start(CPU_ONLY)


@pytest.mark.usefixtures("no_launcher")
def test_a_store_that_is_not_there(agent: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "CONNECT_S", 1.0)
    agent(0, nodes=1, port=1)
    with pytest.raises(EyasError, match="rank 0 is gone"):
        start(CPU_ONLY)


@pytest.mark.usefixtures("no_launcher")
@pytest.mark.parametrize(
    ("compute", "gpus", "alone", "processes"),
    [
        (ComputeParams(), 0, False, 1),
        (ComputeParams(), 8, False, 8),
        (ComputeParams(), 8, True, 1),
        (ComputeParams(accelerator="cpu"), 8, False, 1),
        (ComputeParams(device_map="auto"), 8, False, 1),
        (ComputeParams(devices=3), 8, False, 3),
    ],
)
def test_processes_by_devices(
    monkeypatch: pytest.MonkeyPatch, compute: ComputeParams, gpus: int, alone: bool, processes: int
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    assert launch._wanted(compute, alone) == processes


def test_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    assert device_of("cpu") == CPU
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert device_of("auto") == torch.device("cuda")
    assert device_of("gpu") == torch.device("cuda")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match="no cuda that torch can use"):
        device_of("cuda")


@pytest.mark.parametrize(
    ("compute", "environment", "threads"),
    [
        (ComputeParams(threads=3), {"OMP_NUM_THREADS": "1"}, [3]),
        (ComputeParams(), {"OMP_NUM_THREADS": "1"}, []),
        (ComputeParams(), {}, [4]),
    ],
)
def test_threads(
    monkeypatch: pytest.MonkeyPatch, compute: ComputeParams, environment: dict[str, str], threads: list[int]
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    set_to: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", set_to.append)
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(8)))
    launch._set_threads(compute, 2)
    assert set_to == threads
