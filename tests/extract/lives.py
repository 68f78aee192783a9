"""Runs of the extract stage that are cheap to start: forked from a process that has imported everything.

python -m tests.extract.lives      reads one line of JSON per life, writes its pid, then its exit status

A life appends a line to `computed.txt` for each shard that it begins to compute.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

from stages import extract

from eyas.extract import journal
from eyas.extract.extractor import Computed, Extractor
from eyas.extract.work import Work
from eyas.hashing import Guard
from eyas.process import run_stage

ROOT = Path(__file__).parents[2]
LOG = "computed.txt"


class Nursery:
    """Starts lives and waits for their end. One at a time."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def start(self, directory: Path, *, delay_s: float = 0.0) -> int:
        """Begin the stage in a directory; returns its pid. Each shard takes `delay_s` longer."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"directory": str(directory), "delay_s": delay_s}) + "\n")
        self._process.stdin.flush()
        return int(self._read())

    def wait(self) -> int:
        """The exit status of the last life, as os.waitstatus_to_exitcode gives it."""
        return int(self._read())

    def _read(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()


@contextlib.contextmanager
def nursery() -> Iterator[Nursery]:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.extract.lives"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "POLARS_MAX_THREADS": "1",
            "PYTHONPATH": f"{ROOT}/src:{ROOT}",
        },
    )
    try:
        yield Nursery(process)
    finally:
        process.kill()
        process.communicate()


def computed(directory: Path) -> list[str]:
    """What all lives have begun to compute: `split number` for each shard."""
    log = directory / LOG
    return log.read_text().splitlines() if log.exists() else []


def watch(delay_s: float, prefix: str = "") -> None:
    """Let the extractor write down what it begins. The trial of the memory budget goes another way.

    The digest of the code is left out: the code under test may be edited while many lives pass.
    """
    journal.code_digest = lambda **options: "code"
    Guard.check = lambda self: None  # type: ignore[method-assign]
    compute = Extractor.compute

    def watched(self: Extractor, work: Work, number: int, advance: Callable[[int], None]) -> Computed:
        with Path(LOG).open("a") as log:
            log.write(f"{prefix}{work.split} {number}\n")
        time.sleep(delay_s)
        return compute(self, work, number, advance)

    Extractor.compute = watched  # type: ignore[method-assign]


def _live_and_exit(order: dict[str, Any]) -> NoReturn:
    code = 1
    try:
        os.chdir(order["directory"])
        sys.argv = [str(ROOT / "stages" / "extract.py")]
        watch(order["delay_s"])
        run_stage(extract.main)
        code = 0
    except SystemExit as error:
        code = int(error.code or 0)
    except BaseException:  # noqa: BLE001 -- the end of this process
        traceback.print_exc()
    finally:
        os._exit(code)  # not through the loop of the parent, whose frame this process has too


def main(lines: Sequence[str] | Any = sys.stdin) -> None:
    import transformers

    transformers.AutoModelForCausalLM  # noqa: B018 -- transformers imports its parts when they are asked for
    for line in lines:
        pid = os.fork()
        if pid == 0:
            _live_and_exit(json.loads(line))
        print(pid, flush=True)
        _, status = os.waitpid(pid, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    main()
