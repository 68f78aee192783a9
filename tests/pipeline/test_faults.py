"""Large generations: 20,000 rows through a faulty server, and a million prompts in little memory."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from eyas import paths
from eyas.generate.session import Session, open_journal
from eyas.generate.table import PromptTable
from tests.generate.example import generate_params, profile, write_prompts
from tests.generate.scripted_process import server_process
from tests.serving.example import server_params

pytestmark = pytest.mark.pipeline

ROOT = Path(__file__).parents[2]
ROWS = 20_000


@pytest.mark.stress
@pytest.mark.timeout(600)
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_20000_rows_with_5_percent_faults_end_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    """429, 503, resets, ends of file, empty bodies, aborts, garbage; the pauses are a fiftieth of those in earnest."""
    monkeypatch.setattr("eyas.generate.run._PAUSE_S", 0.02)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "params.yaml").write_text("datasets: {}\nprompts: {}\n")
    prompts = [f"question {index}" for index in range(ROWS)]
    write_prompts("a", prompts)
    params, target = generate_params(stream=stream), profile()
    with server_process("--delay-s", "0.01", "--faults", "0.05", "--seed", "7") as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.base_url)
        with open_journal("a", target, params) as journal:
            with Session("a", target, params, server_params(concurrency=128, max_attempts=6)) as session:
                responses = session.answer(PromptTable.read(paths.prompts("a"), "a"), journal)
            done = responses.publish(paths.responses("a"))
            summary = json.loads((journal.directory / "summary.json").read_bytes())
        seen = server.seen()
    assert (done.rows, done.failed) == (ROWS, 0)
    with paths.raw_responses("a").open("rb") as file:
        assert [json.loads(line)["content"] for line in file] == [f"answer to {prompt}" for prompt in prompts]
    faults = sum(fault["count"] for fault in summary["faults"])
    assert len(summary["faults"]) >= 8  # classes
    assert seen.posts.total() == ROWS + faults
    assert 0.03 < faults / seen.posts.total() < 0.07


@pytest.mark.stress
@pytest.mark.timeout(1500)
def test_case_D20_a_million_prompts_in_less_than_400_mb() -> None:
    """A run over 1,000,000 prompts in a process of its own; its server answers within a millisecond."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.generate", "--prompts", "1000000"],
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        check=True,
        capture_output=True,
        text=True,
    )
    measured = re.search(r"(\d+) MB at most", done.stdout)
    assert measured is not None, done.stdout
    assert int(measured[1]) < 400, done.stdout
