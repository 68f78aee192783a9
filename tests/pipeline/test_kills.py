"""Kill -9 at 100 random moments of a generation: nothing that had arrived is lost, nothing is asked twice."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from pathlib import Path

import pytest

from eyas import paths
from tests.generate.example import write_prompts
from tests.generate.scripted_process import ServerProcess, server_process
from tests.nursery import nursery

pytestmark = pytest.mark.pipeline

KILLS = 100
CONCURRENCY = 8
PROMPTS = [f"question {index}" for index in range(2000)]
SERVER = {"concurrency": CONCURRENCY}


def arrived() -> set[str]:
    """Prompts whose answer is in the journal, judged or not."""
    found: set[str] = set()
    for path in paths.journal("generate").glob("a/*/rows.jsonl"):
        for line in path.read_bytes().split(b"\n")[
            :-1
        ]:  # behind the last newline stands nothing, or a torn line
            entry = json.loads(line)
            if "answer" in entry:
                found.add(PROMPTS[int(entry["sample_id"].rpartition(":")[2])])
    return found


def asked_again(server: ServerProcess, known: set[str], posts: dict[str, int]) -> list[str]:
    now = server.seen().posts
    return [prompt for prompt in known if now[prompt] != posts[prompt]]


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "stream", [False, pytest.param(True, marks=pytest.mark.stress)], ids=["whole", "stream"]
)
def test_case_H06_variation_kill_9_at_100_random_moments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "params.yaml").write_text("datasets: {}\nprompts: {}\n")
    write_prompts("a", PROMPTS)
    chance = random.Random(20261129 + stream)
    known: set[str] = set()
    in_flight_at_kills = 0
    options = {"generate": {"stream": stream}, "server": SERVER}
    with server_process("--delay-s", "0.05") as server, nursery("tests.generate.lives") as lives:
        for _ in range(KILLS):
            posts = server.seen().posts
            pid = lives.start(tmp_path, base_url=server.base_url, **options)
            time.sleep(chance.uniform(0.02, 0.35))
            os.kill(pid, signal.SIGKILL)
            assert lives.wait() == -signal.SIGKILL, "it ended before it was killed: more prompts are needed"
            now = arrived()
            assert now >= known, "an answer that was in the journal is gone"
            lost = server.seen().posts.total() - posts.total() - len(now - known)
            assert 0 <= lost <= CONCURRENCY, "more was lost than was in flight"
            assert asked_again(server, known, posts) == [], "an answered prompt was asked again"
            in_flight_at_kills += lost
            known = now
        posts = server.seen().posts
        lives.start(tmp_path, base_url=server.base_url, **options)
        assert lives.wait() == 0
        assert asked_again(server, known, posts) == []
        assert server.seen().posts.total() <= len(PROMPTS) + in_flight_at_kills
    rows = [json.loads(line) for line in paths.raw_responses("a").read_bytes().splitlines()]
    assert [row["messages"][0]["content"] for row in rows] == PROMPTS
    assert (paths.responses("a") / "errors.jsonl").read_bytes() == b""
    assert 100 < len(known) < len(PROMPTS)  # the kills fell into the run, not before or behind it
