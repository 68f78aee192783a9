"""Start, failure and end of a server process tree, with a small stand-in for vLLM (the real one: tests/pipeline)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import httpx2
import psutil
import pytest

from eyas.errors import ServerError
from eyas.serving import vllm
from eyas.serving.vllm import LocalVllm, server_python
from tests.serving.example import server_params

FAKE = Path(__file__).with_name("fake_server.py")


@pytest.fixture
def behave(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Use the stand-in, behaving as named."""
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} {FAKE} "$@"\n')
    python.chmod(0o755)
    monkeypatch.setenv("EYAS_VLLM_PYTHON", str(python))
    monkeypatch.setenv("DVC_ROOT", str(tmp_path))
    monkeypatch.setattr(vllm, "GRACE_S", 0.5)
    return lambda behaviour: monkeypatch.setenv("FAKE_SERVER", behaviour)


def local(**changes: object) -> LocalVllm:
    return LocalVllm(Path("models/target"), "name", "float32", server_params(**changes), "test")


def tree(server: LocalVllm, size: int = 3) -> list[psutil.Process]:
    """The supervisor, the server and its child, once all are there."""
    root = psutil.Process(server.pid)
    deadline = time.monotonic() + 20
    while len(found := [root, *root.children(recursive=True)]) < size:
        assert time.monotonic() < deadline, found
        time.sleep(0.05)
    return found


def assert_all_end(processes: list[psutil.Process], seconds: float) -> None:
    _, alive = psutil.wait_procs(processes, timeout=seconds)
    assert [process for process in alive if process.status() != psutil.STATUS_ZOMBIE] == []


def test_inside_the_block_the_server_is_healthy_and_behind_it_nothing_is_left(
    behave: Callable[[str], None],
) -> None:
    behave("healthy")
    with local() as server:
        assert server.base_url == f"http://127.0.0.1:{server.port}/v1"
        httpx2.get(f"http://127.0.0.1:{server.port}/health", trust_env=False).raise_for_status()
        server.check_alive()
        processes = tree(server)
        assert os.getpgid(server.pid) != os.getpgid(0)
    assert_all_end(processes, 0)
    assert "starting as healthy" in server.log_path.read_text()


def test_arguments_and_environment_of_the_server(
    behave: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    behave("healthy")
    monkeypatch.setenv("PYTHONPATH", "/somewhere")
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    speculative = {"method": "eagle3", "num_speculative_tokens": 3}
    with LocalVllm(
        Path("m"), "name", "float32", server_params(kv_cache_gib=2), "test", speculative
    ) as server:
        seen = httpx2.get(f"http://127.0.0.1:{server.port}/", trust_env=False).json()
    arguments, environment = seen["arguments"], seen["environment"]
    for pair in (
        ["-m", "vllm.entrypoints.openai.api_server"],
        ["--model", str(Path("m").resolve())],
        ["--served-model-name", "name"],
        ["--host", "127.0.0.1"],
        ["--port", str(server.port)],
        ["--dtype", "float32"],
        ["--max-model-len", "512"],
        ["--max-num-seqs", "4"],
        ["--generation-config", "vllm"],
        ["--speculative-config", '{"method": "eagle3", "num_speculative_tokens": 3}'],
    ):
        assert arguments[arguments.index(pair[0]) :][:2] == pair
    assert arguments[-1] == "--enforce-eager"
    assert environment["VLLM_CPU_KVCACHE_SPACE"] == "2"
    assert environment["VLLM_HOST_IP"] == "127.0.0.1"
    assert (
        environment["HF_HUB_OFFLINE"]
        == environment["VLLM_NO_USAGE_STATS"]
        == environment["DO_NOT_TRACK"]
        == "1"
    )
    assert environment.keys().isdisjoint({"PYTHONPATH", "OPENAI_API_KEY"})


def test_arguments_and_variables_of_a_purpose_come_last(behave: Callable[[str], None]) -> None:
    behave("healthy")
    server = LocalVllm(
        Path("m"),
        "name",
        "float32",
        server_params(extra_args=["--enable-prefix-caching"]),
        "test",
        arguments=("--no-enable-prefix-caching",),
        environment={"PYTHONPATH": "/plugin", "VLLM_CPU_KVCACHE_SPACE": "5"},
    )
    with server:
        seen = httpx2.get(f"http://127.0.0.1:{server.port}/", trust_env=False).json()
    assert seen["arguments"][-2:] == ["--enable-prefix-caching", "--no-enable-prefix-caching"]
    assert seen["environment"]["PYTHONPATH"] == "/plugin"
    assert seen["environment"]["VLLM_CPU_KVCACHE_SPACE"] == "5"


def test_a_server_that_ends_early_is_noticed_at_once_and_its_log_is_shown(
    behave: Callable[[str], None],
) -> None:
    behave("broken")
    started = time.monotonic()
    with pytest.raises(ServerError, match="RuntimeError: no such model") as caught, local():
        pass
    assert "exit code 3" in caught.value.what
    assert caught.value.where is not None
    assert Path(caught.value.where).parent.name == "logs"
    assert time.monotonic() - started < 10


def test_a_server_that_hangs_is_stopped_after_the_timeout(behave: Callable[[str], None]) -> None:
    behave("hanging")
    server = local(start_timeout_s=1.5)
    with pytest.raises(ServerError, match=r"not healthy within 1\.5 s"), server:
        pass
    child = int(server.log_path.read_text().split("child ")[1].split()[0])
    assert not psutil.pid_exists(child)


def test_a_server_that_dies_takes_its_children_along_and_is_noticed(behave: Callable[[str], None]) -> None:
    behave("short-lived")
    with local() as server:
        child = int(server.log_path.read_text().split("child ")[1].split()[0])
        deadline = time.monotonic() + 10
        while psutil.pid_exists(child):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        psutil.wait_procs([psutil.Process(server.pid)], timeout=10)
        with pytest.raises(ServerError, match="has ended"):
            server.check_alive()


def test_an_error_inside_the_block_stops_the_server(behave: Callable[[str], None]) -> None:
    behave("healthy")
    processes: list[psutil.Process] = []

    def fail() -> None:
        with local() as server:
            processes.extend(tree(server))
            raise KeyError("inside")

    with pytest.raises(KeyError, match="inside"):
        fail()
    assert_all_end(processes, 0)


OWNER = """
import sys, time
from pathlib import Path
from eyas.serving.params import ServerParams
from eyas.serving.vllm import LocalVllm
from tests.serving.example import server_params
with LocalVllm(Path("m"), "name", "float32", server_params(), "test") as server:
    print(server.pid, flush=True)
    time.sleep(600)
"""


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGTERM])
def test_the_tree_ends_when_its_owner_is_killed(behave: Callable[[str], None], signum: int) -> None:
    behave("healthy")
    with subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE) as owner:
        assert owner.stdout is not None
        root = psutil.Process(int(owner.stdout.readline()))
        deadline = time.monotonic() + 20
        while len(processes := [root, *root.children(recursive=True)]) < 3:
            assert time.monotonic() < deadline
        owner.send_signal(signum)
        owner.wait()
        assert_all_end(processes, 15)


def test_the_server_ends_when_its_supervisor_is_killed(behave: Callable[[str], None]) -> None:
    behave("healthy")
    with local() as server:
        processes = tree(server)
        os.kill(server.pid, signal.SIGKILL)
        assert_all_end(processes[:2], 10)
        processes[2].kill()


def test_a_missing_environment_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("EYAS_VLLM_PYTHON", raising=False)
    monkeypatch.setenv("DVC_ROOT", str(tmp_path))
    with pytest.raises(ServerError, match="environment is missing") as caught:
        server_python()
    assert "make venv-vllm" in str(caught.value)
    assert "OPENAI_BASE_URL" in str(caught.value)
    assert str(tmp_path / ".venv-vllm") in str(caught.value)
