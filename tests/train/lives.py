"""Runs of stages/train.py that are cheap to start: forked from a process that has imported everything.

python -m tests.train.lives      reads a directory per line, runs the stage there, writes its pid, then its exit status
"""

from __future__ import annotations

import contextlib
import os
import runpy
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import eyas.train.fit  # noqa: F401 - imported once, for all lives
from tests.train.scratch import ROOT, SCRIPT


class Nursery:
    """Starts lives and waits for their end. One at a time."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def start(self, directory: Path) -> int:
        """Begin the stage in a directory; returns its pid."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{directory}\n")
        self._process.stdin.flush()
        return self._read()

    def wait(self) -> int:
        """The exit status of the last life, as os.waitstatus_to_exitcode gives it."""
        return self._read()

    def _read(self) -> int:
        assert self._process.stdout is not None
        return int(self._process.stdout.readline())


@contextlib.contextmanager
def nursery(log: Path) -> Iterator[Nursery]:
    """A process that lives are forked from; what they print goes to a file."""
    with log.open("w") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.train.lives"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            cwd=ROOT,
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"},
        )
        try:
            yield Nursery(process)
        finally:
            process.kill()
            process.communicate()


def _live_and_exit(directory: str) -> NoReturn:
    code = 1
    os.dup2(2, 1)  # the pipe is for pids
    try:
        os.chdir(directory)
        sys.argv = [str(SCRIPT)]
        runpy.run_path(str(SCRIPT), run_name="__main__")
        code = 0
    except SystemExit as error:
        code = int(error.code or 0)
    finally:
        sys.stderr.flush()
        os._exit(code)  # not through the loop of the parent, whose frame this process has too


def main() -> None:
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            _live_and_exit(line.strip())
        print(pid, flush=True)
        _, status = os.waitpid(pid, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    main()
