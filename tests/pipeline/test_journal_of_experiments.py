"""`dvc exp run --temp` works in a copy of the repository, but shares the journal of the real one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.pipeline, pytest.mark.timeout(300)]

STAGE = """
import json
from eyas import paths
from eyas.journal import Journal
params = json.loads(open("params.json").read())
with Journal(paths.journal("generate") / "a" / str(params["temperature"]), params) as journal:
    calls = [key for key in ("x", "y", "z") if key not in journal]
    for key in calls:
        journal.append({"key": key, "answer": f"{key} at {params['temperature']}"})
    answers = [journal.get(key)["answer"] for key in ("x", "y", "z")]
open("answers.json", "w").write(json.dumps(answers))
with open(paths.root() / "calls.log", "a") as log:
    log.write(f"{len(calls)}\\n")
"""
PIPELINE = f"""
stages:
  generate:
    cmd: exec {sys.executable} stage.py
    deps: [stage.py]
    params: [params.json: [temperature]]
    outs: [answers.json]
"""


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in [name for name in os.environ if name.startswith(("DVC_", "GIT_"))]:
        monkeypatch.delenv(name)
    site = tmp_path / "dvc"
    for name in ("DVC_SITE_CACHE_DIR", "DVC_GLOBAL_CONFIG_DIR", "DVC_SYSTEM_CONFIG_DIR"):
        monkeypatch.setenv(name, str(site / name))
    monkeypatch.setenv("DVC_NO_ANALYTICS", "1")
    directory = tmp_path / "repository"
    directory.mkdir()
    monkeypatch.chdir(directory)
    (directory / "stage.py").write_text(STAGE)
    (directory / "dvc.yaml").write_text(PIPELINE)
    (directory / "params.json").write_text('{"temperature": 0.5}\n')
    (directory / ".gitignore").write_text("/data/\n/answers.json\n/calls.log\n")
    (directory / ".dvcignore").write_text("/data/.journal/\n")
    run("git", "init", "-q")
    run("git", "config", "user.name", "Test")
    run("git", "config", "user.email", "test@example.org")
    dvc("init", "-q")
    run("git", "add", "-A")
    run("git", "commit", "-q", "-m", "start")
    return directory


def run(*command: str) -> None:
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def dvc(*arguments: str) -> None:
    run(sys.executable, "-m", "dvc", *arguments)


def calls(repository: Path) -> list[str]:
    return (repository / "calls.log").read_text().split()


def test_experiments_and_the_workspace_share_their_answers(repository: Path) -> None:
    dvc("exp", "run", "--temp")
    assert calls(repository) == ["3"]
    dvc("exp", "run", "--temp", "-S", "params.json:temperature=0.9")
    dvc("exp", "run", "--temp", "-f")
    assert calls(repository) == ["3", "3", "0"]
    (repository / "params.json").write_text('{"temperature": 0.9}\n')
    dvc("repro", "-f")
    dvc("checkout", "-f")
    assert calls(repository) == ["3", "3", "0", "0"]
    journals = sorted(path.name for path in (repository / "data/.journal/generate/a").iterdir())
    assert journals == ["0.5", "0.9"]
