"""Runs of the generate stage that are cheap to start: forked from a process that has imported everything.

python -m tests.generate.lives      reads one line of JSON per life, writes its pid, then its exit status
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

from eyas import paths
from eyas.generate.session import Session, open_journal
from eyas.generate.table import PromptTable
from eyas.process import run_stage
from tests.generate.example import generate_params, profile
from tests.serving.example import server_params

ROOT = Path(__file__).parents[2]


class Nursery:
    """Starts lives and waits for their end. One at a time."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def start(self, directory: Path, base_url: str, **options: Any) -> int:
        """Begin a run of dataset a in a directory; returns its pid. Options: `generate`, `server`: params."""
        self._write({"directory": str(directory), "base_url": base_url, **options})
        return int(self._read())

    def wait(self) -> int:
        """The exit status of the last life, as os.waitstatus_to_exitcode gives it."""
        return int(self._read())

    def _write(self, order: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()

    def _read(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()


@contextlib.contextmanager
def nursery() -> Iterator[Nursery]:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.generate.lives"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", "POLARS_MAX_THREADS": "1"},
    )
    try:
        yield Nursery(process)
    finally:
        process.kill()
        process.communicate()


def live(order: dict[str, Any]) -> None:
    """What stages/generate.py does, without its guard: the code under test may be edited while 100 lives pass."""
    os.chdir(order["directory"])
    os.environ["OPENAI_BASE_URL"] = order["base_url"]
    params = generate_params(**order.get("generate", {}))
    server = server_params(**order.get("server", {}))
    target = profile()

    def main() -> None:
        table = PromptTable.read(paths.prompts("a"), "a")
        with open_journal("a", target, params) as journal:
            with Session("a", target, params, server) as session:
                responses = session.answer(table, journal)
            responses.publish(paths.responses("a"))

    run_stage(main)


def _live_and_exit(order: dict[str, Any]) -> NoReturn:
    code = 1
    try:
        live(order)
        code = 0
    except SystemExit as error:
        code = int(error.code or 0)
    finally:
        os._exit(code)  # not through the loop of the parent, whose frame this process has too


def main() -> None:
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            _live_and_exit(json.loads(line))
        print(pid, flush=True)
        _, status = os.waitpid(pid, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    main()
