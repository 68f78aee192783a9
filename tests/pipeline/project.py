"""Scratch copies of this repository with tiny params, in which the tests run DVC as a user does."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from omegaconf import OmegaConf

ROOT = Path(__file__).parent.parent.parent
TIMEOUT_S = 900

TINY: dict[str, Any] = {
    "datasets": {
        "numbers": {
            "source": "reasoning_gym",
            "role": "train",
            "tasks": ["gcd", "chain_sum"],
            "count": 7,
            "seed": 1,
        },
        "everyday": {
            "source": "jsonl",
            "role": "train",
            "path": "everyday.jsonl",
            "column": "prompt",
            "count": 8,
        },
        "heldout": {
            "source": "reasoning_gym",
            "role": "eval",
            "tasks": ["gcd", "chain_sum"],
            "count": 2,
            "seed": 2,
        },
        "mt-bench": {"source": "mt_bench", "role": "eval", "count": 2},
    },
    "generate": {"max_tokens": 24},
    "validate": {"max_truncated_share": 1.0},
    "reassemble": {"val_share": 0.2},
    "vocab": {"draft_vocab_size": 512},
    "train": {"epochs": 2, "batch_tokens": 1024},
    "engine": {"concurrency": [1, 2], "prompts_at_concurrency_1": 1, "rounds": 1, "max_disagreement": 0.25},
}


@dataclass(frozen=True)
class Project:
    """A git and DVC repository of its own, with its own journal, cache and DVC state."""

    path: Path
    home: Path
    """Holds DVC's state and configuration, so that nothing of the user's is read or written."""

    @classmethod
    def create(cls, path: Path, home: Path) -> Project:
        """Copy the files that git would take, shrink the params, commit."""
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=ROOT, check=True, capture_output=True, text=True,
        ).stdout  # fmt: skip
        for name in filter(None, listed.split("\0")):
            if (ROOT / name).is_file() and not name.startswith("reports/") and name != "dvc.lock":
                (path / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, path / name)
        project = cls(path, home)
        project.git("init", "--quiet", "--initial-branch", "main")
        params = OmegaConf.load(path / "params.yaml")
        OmegaConf.update(params, "datasets", TINY["datasets"], merge=False)
        for section, values in TINY.items():
            if section != "datasets":
                OmegaConf.update(params, section, values, merge=True)
        OmegaConf.save(params, path / "params.yaml")
        project.commit("tiny")
        return project

    def clone(self, path: Path) -> Project:
        """What another person gets from git: no cache, no journal, no outputs."""
        self.git("clone", "--quiet", str(self.path), str(path))
        return Project(path, self.home)

    @property
    def environment(self) -> dict[str, str]:
        kept = {
            k: v for k, v in os.environ.items() if not k.startswith(("DVC_", "OPENAI_", "EYAS_", "PYTEST_"))
        }
        dvc = {
            f"DVC_{name}_DIR": str(self.home / name.lower())
            for name in ("SITE_CACHE", "GLOBAL_CONFIG", "SYSTEM_CONFIG")
        }
        author = {
            f"GIT_{who}_{what}": "test@example.org"
            for who in ("AUTHOR", "COMMITTER")
            for what in ("NAME", "EMAIL")
        }
        return kept | dvc | author | {
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTHONPATH": str(self.path / "src"),
            "EYAS_VLLM_PYTHON": str(ROOT / ".venv-vllm" / "bin" / "python"),
            "DVC_NO_ANALYTICS": "1",
        }  # fmt: skip

    def git(self, *arguments: str) -> str:
        return subprocess.run(
            ["git", *arguments],
            cwd=self.path,
            env=self.environment,
            check=True,
            capture_output=True,
            text=True,
        ).stdout

    def commit(self, message: str) -> None:
        self.git("add", "--all")
        self.git("commit", "--quiet", "--allow-empty", "--message", message)

    def dvc(self, *arguments: str, code: int = 0) -> str:
        """Run dvc; returns what it printed. `code` is the exit code that it must have."""
        done = subprocess.run(
            ["dvc", *arguments], cwd=self.path, env=self.environment, check=False,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=TIMEOUT_S,
        )  # fmt: skip
        assert done.returncode == code, (
            f"dvc {' '.join(arguments)} exited with {done.returncode}:\n{done.stdout}"
        )
        return done.stdout

    def start_dvc(self, *arguments: str) -> subprocess.Popen[str]:
        """Run dvc in a process group of its own, as a terminal does."""
        return subprocess.Popen(
            ["dvc", *arguments], cwd=self.path, env=self.environment, start_new_session=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip

    def edit(self, key: str, value: Any) -> None:
        """Set one params key."""
        params = OmegaConf.load(self.path / "params.yaml")
        OmegaConf.update(params, key, value)
        OmegaConf.save(params, self.path / "params.yaml")

    def restore(self) -> None:
        """Back to the last commit and its outputs."""
        # Without the index every file is written: dvc stages dvc.lock, and git takes a file for unchanged if size and
        # second of the last change are, as after two edits of a number.
        (self.path / ".git/index").unlink()
        self.git("reset", "--quiet", "--hard")
        self.dvc("checkout", "--quiet", "--force")

    def journal_entries(self) -> list[dict[str, Any]]:
        """Entries in the journals of all datasets; a line that is being written is left out."""
        files = sorted(self.path.glob("data/.journal/generate/*/*/rows.jsonl"))
        lines = [line for file in files for line in file.read_bytes().split(b"\n")[:-1]]
        return [json.loads(line) for line in lines]

    def processes(self) -> list[str]:
        """Command lines of living processes that belong to this project."""
        found = []
        for process in psutil.process_iter():
            try:
                if process.environ().get("PWD") == str(self.path) or process.cwd() == str(self.path):
                    found.append(" ".join(process.cmdline()))
            except (psutil.Error, OSError):
                continue
        return found

    def wait_for_processes_to_end(self, timeout_s: float = 30.0) -> list[str]:
        """Whatever of this project still lives after a while."""
        deadline = time.monotonic() + timeout_s
        while (left := self.processes()) and time.monotonic() < deadline:
            time.sleep(0.5)
        return left


def stages_run(output: str) -> list[str]:
    """Names of the stages that dvc says it ran (or, in a dry run, would run)."""
    return re.findall(r"Running stage '([^']+)'", output)


def interrupt(process: subprocess.Popen[str]) -> str:
    """Ctrl-C: SIGINT to the whole process group. Returns the output."""
    os.killpg(process.pid, signal.SIGINT)
    output, _ = process.communicate(timeout=120)
    return output
