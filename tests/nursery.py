"""Lives: runs that are cheap to start, forked from a process that has imported everything. For tests that kill many.

A module of lives ends with `serve(live)`; `nursery("tests.that.module")` starts it and gives it orders.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

ROOT = Path(__file__).parents[1]


class Nursery:
    """Starts lives and waits for their end. One at a time."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def start(self, directory: Path, **order: Any) -> int:
        """Begin a life in a directory; returns its pid. What else it needs to know goes through JSON."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"directory": str(directory), **order}) + "\n")
        self._process.stdin.flush()
        return self._read()

    def wait(self) -> int:
        """The exit status of the last life, as os.waitstatus_to_exitcode gives it."""
        return self._read()

    def _read(self) -> int:
        assert self._process.stdout is not None
        return int(self._process.stdout.readline())


@contextlib.contextmanager
def nursery(module: str, log: Path | None = None) -> Iterator[Nursery]:
    """A process that lives are forked from; what they print goes to `log`, or to stderr."""
    with contextlib.ExitStack() as files:
        process = subprocess.Popen(
            [sys.executable, "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=None if log is None else files.enter_context(log.open("w")),
            text=True,
            cwd=ROOT,
            env={
                **os.environ,
                "OMP_NUM_THREADS": "1",
                "POLARS_MAX_THREADS": "1",
                "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}",
            },
        )
        try:
            yield Nursery(process)
        finally:
            process.kill()
            process.communicate()


def serve(live: Callable[[dict[str, Any]], None]) -> None:
    """Fork a life for each order on stdin; write its pid, then its exit status."""
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            _live_and_exit(live, json.loads(line))
        print(pid, flush=True)
        _, status = os.waitpid(pid, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


def _live_and_exit(live: Callable[[dict[str, Any]], None], order: dict[str, Any]) -> NoReturn:
    code = 1
    os.dup2(2, 1)  # the pipe is for pids
    try:
        os.chdir(order["directory"])
        live(order)
        code = 0
    except SystemExit as error:
        code = int(error.code or 0)
    except BaseException:  # noqa: BLE001 -- the end of this process
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)  # not through the loop of the parent, whose frame this process has too
