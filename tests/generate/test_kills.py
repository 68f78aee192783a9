"""Runs that are killed: what had arrived is there, and is not asked again."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from eyas import paths
from tests.generate.asking import in_both_modes
from tests.generate.example import write_prompts
from tests.generate.scripted import Scripted, ScriptedServer, completion
from tests.nursery import Nursery, nursery

PROMPTS = [f"question {index}" for index in range(300)]
CONCURRENCY = 4


@pytest.fixture(scope="module")
def lives() -> Iterator[Nursery]:
    with nursery("tests.generate.lives") as made:
        yield made


@pytest.fixture
def server(repository: Path) -> Iterator[ScriptedServer]:
    write_prompts("a", PROMPTS)
    with ScriptedServer() as scripted:
        yield scripted


def entries() -> list[dict[str, Any]]:
    """Whole lines of the journal that carry an answer, judged or not."""
    (path,) = paths.journal("generate").glob("a/*/rows.jsonl")
    lines = [json.loads(line) for line in path.read_bytes().split(b"\n")[:-1]]
    return [line for line in lines if "answer" in line]


def published() -> list[str]:
    rows = [json.loads(line) for line in paths.raw_responses("a").read_bytes().splitlines()]
    return [row["messages"][0]["content"] for row in rows]


def wait_for_posts(server: ScriptedServer, number: int) -> None:
    deadline = time.monotonic() + 30
    while server.posts.total() < number:
        assert time.monotonic() < deadline
        time.sleep(0.002)


@in_both_modes
@pytest.mark.parametrize("answers", [1, 4, 8, 9, 60, 150])
def test_case_H06_every_answer_that_arrived_survives_kill_9(
    server: ScriptedServer, lives: Nursery, answers: int, stream: bool
) -> None:
    """Killed when k answers have come and every worker waits for its next: exactly k are on the disk."""
    release, posts = Event(), count(1)
    server.script = lambda prompt, number: Scripted(
        completion(prompt), hold=release if next(posts) > answers else None
    )
    most = answers + CONCURRENCY
    pid = lives.start(Path.cwd(), base_url=server.base_url, generate={"stream": stream})
    wait_for_posts(server, most)
    os.kill(pid, signal.SIGKILL)
    assert lives.wait() == -signal.SIGKILL
    assert server.posts.total() == most
    kept = {PROMPTS[int(entry["sample_id"][2:])] for entry in entries()}
    assert len(kept) == answers
    release.set()
    lives.start(Path.cwd(), base_url=server.base_url, generate={"stream": stream})
    assert lives.wait() == 0
    assert published() == PROMPTS
    assert {prompt: server.posts[prompt] for prompt in kept} == dict.fromkeys(kept, 1)
    assert server.posts.total() == len(PROMPTS) + most - answers


@in_both_modes
def test_case_H06_variation_random_moments(server: ScriptedServer, lives: Nursery, stream: bool) -> None:
    """Five of them here; a hundred in tests/pipeline."""
    server.script = lambda prompt, number: Scripted(completion(prompt), delay_s=0.03)
    chance = random.Random(5)
    before: set[str] = set()
    for _ in range(5):
        asked = server.posts.copy()
        pid = lives.start(Path.cwd(), base_url=server.base_url, generate={"stream": stream})
        time.sleep(chance.uniform(0.02, 0.25))
        os.kill(pid, signal.SIGKILL)
        assert lives.wait() == -signal.SIGKILL
        now = (
            {PROMPTS[int(entry["sample_id"][2:])] for entry in entries()} if asked or server.posts else set()
        )
        assert now >= before
        assert 0 <= server.posts.total() - asked.total() - len(now - before) <= CONCURRENCY
        assert all(server.posts[prompt] == asked[prompt] for prompt in before)
        before = now
    lives.start(Path.cwd(), base_url=server.base_url, generate={"stream": stream})
    assert lives.wait() == 0
    assert published() == PROMPTS


@in_both_modes
@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_stop_signal_abandons_what_is_in_flight_and_keeps_the_rest(
    server: ScriptedServer, lives: Nursery, signum: signal.Signals, stream: bool
) -> None:
    release, posts = Event(), count(1)
    server.script = lambda prompt, number: Scripted(
        completion(prompt), hold=release if next(posts) > 20 else None
    )
    pid = lives.start(Path.cwd(), base_url=server.base_url, generate={"stream": stream})
    wait_for_posts(server, 24)
    started = time.monotonic()
    os.kill(pid, signum)
    assert lives.wait() == 128 + signum
    assert time.monotonic() - started < 5
    assert len(entries()) == 20
    deadline = time.monotonic() + 5
    while server.seen.abandoned < CONCURRENCY:  # their connections are closed, so that the server can stop
        assert time.monotonic() < deadline
        time.sleep(0.01)
    release.set()
    lives.start(Path.cwd(), base_url=server.base_url, generate={"stream": stream})
    assert lives.wait() == 0
    assert published() == PROMPTS
    assert server.posts.total() == len(PROMPTS) + CONCURRENCY
