"""The stage as a process: exit codes, stop signals, kill -9, edits while it runs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from threading import Event

import pytest

from eyas import jsonl, paths
from tests.generate.example import profile, write_prompts
from tests.generate.scripted import Scripted, ScriptedServer, completion

STAGE = Path(__file__).parents[2] / "stages" / "generate.py"
PROMPTS = [f"question {index}" for index in range(60)]


@pytest.fixture
def slow_server() -> Iterator[ScriptedServer]:
    with ScriptedServer(lambda prompt, number: Scripted(completion(prompt), delay_s=0.04)) as server:
        yield server


@pytest.fixture(autouse=True)
def inputs(repository: Path) -> None:
    profile().write(paths.TARGET_PROFILE)
    write_prompts("a", PROMPTS)


def start(server: ScriptedServer, *arguments: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, str(STAGE), *(arguments or ["a"])],
        env=os.environ | {"OPENAI_BASE_URL": server.base_url},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )


def wait_for_posts(server: ScriptedServer, count: int) -> None:
    deadline = time.monotonic() + 30
    while server.posts.total() < count:
        assert time.monotonic() < deadline
        time.sleep(0.005)


def published() -> list[str]:
    rows = [json.loads(line) for line in paths.raw_responses("a").read_bytes().splitlines()]
    return [row["messages"][0]["content"] for row in rows]


def recorded() -> list[str]:
    """Sample ids that have an answer in the journal, judged or not."""
    rows = [row for path in paths.journal("generate").glob("a/*/rows.jsonl") for row in jsonl.read(path)]
    return sorted({row.value["sample_id"] for row in rows if "answer" in row.value})


def test_a_run_ends_with_0_and_a_summary(slow_server: ScriptedServer) -> None:
    stdout, stderr = (stage := start(slow_server)).communicate(timeout=60)
    assert stage.returncode == 0, stderr
    assert stdout.decode() == "a: 60 answers, 180 tokens, 0 truncated, 0 failed\n"
    assert published() == PROMPTS


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_stop_signal_keeps_what_arrived_and_is_never_success(
    slow_server: ScriptedServer, signum: signal.Signals
) -> None:
    slow_server.script = lambda prompt, number: Scripted(completion(prompt), delay_s=0.15)
    stage = start(slow_server)
    wait_for_posts(slow_server, 20)
    stage.send_signal(signum)
    _, stderr = stage.communicate(timeout=20)
    assert stage.returncode == 128 + signum
    assert b"finished work is kept" in stderr
    assert b"Traceback" not in stderr
    assert not paths.responses("a").exists()
    assert len(recorded()) >= 16  # 20 were asked, at most 4 of them had not come back


def test_case_D19_variation_the_exit_code_and_the_summary_tell_of_the_bad_row(
    slow_server: ScriptedServer,
) -> None:
    """Within generate.max_failed_share the pipeline goes on, with the count in its output; else the stage fails."""
    bad = Scripted({"error": {"message": "no"}}, status=500)
    slow_server.script = lambda prompt, number: bad if prompt == PROMPTS[37] else Scripted(completion(prompt))
    _, stderr = (stage := start(slow_server)).communicate(timeout=60)
    assert stage.returncode == 1
    assert b"1 of 60 rows failed" in stderr
    assert not paths.responses("a").exists()
    params = Path("params.yaml")
    params.write_text(params.read_text().replace("max_failed_share: 0.0", "max_failed_share: 0.02"))
    stdout, stderr = (stage := start(slow_server)).communicate(timeout=60)
    assert stage.returncode == 0, stderr
    assert stdout.decode() == "a: 59 answers, 177 tokens, 0 truncated, 1 failed\n"


def test_params_edited_while_it_runs_stop_it_before_it_publishes(
    slow_server: ScriptedServer, repository: Path
) -> None:
    stage = start(slow_server)
    wait_for_posts(slow_server, 10)
    params = repository / "params.yaml"
    params.write_text(params.read_text().replace("temperature: 0.0", "temperature: 0.5"))
    _, stderr = stage.communicate(timeout=60)
    assert stage.returncode == 1
    assert b"`generate` changed while the stage ran" in stderr
    assert not paths.responses("a").exists()
    assert len(recorded()) == 60


def test_a_second_writer_is_refused_with_exit_code_75(slow_server: ScriptedServer) -> None:
    release = Event()

    def held_back(prompt: str, number: int) -> Scripted:
        return Scripted(completion(prompt), hold=release)

    slow_server.script = held_back
    first = start(slow_server)
    wait_for_posts(slow_server, 1)
    _, stderr = (second := start(slow_server)).communicate(timeout=30)
    release.set()
    _, first_stderr = first.communicate(timeout=60)
    assert (first.returncode, second.returncode) == (0, 75), first_stderr
    assert f"pid {first.pid}".encode() in stderr


def test_no_dataset_is_a_clear_error(slow_server: ScriptedServer) -> None:
    stage = start(slow_server, "a", "b")
    _, stderr = stage.communicate(timeout=30)
    assert stage.returncode == 1
    assert b"a dataset name is needed" in stderr
