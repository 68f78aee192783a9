from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from eyas.errors import EyasError, Interrupted

SWALLOWS = """
import os, signal, time
from eyas.process import run_stage
def main():
    try:
        os.kill(os.getpid(), signal.{name})
        time.sleep(30)
    except Exception:
        print("swallowed")
run_stage(main)
"""


@pytest.mark.parametrize(("name", "code"), [("SIGINT", 130), ("SIGTERM", 143)])
def test_a_stop_signal_gets_past_broad_handlers(name: str, code: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SWALLOWS.format(name=name)],
        check=False,
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert done.returncode == code
    assert "swallowed" not in done.stdout
    assert "run `dvc repro` again" in done.stderr
    assert "Traceback" not in done.stderr


def test_errors_are_shown_without_traceback() -> None:
    script = (
        "from eyas.errors import GateError\nfrom eyas.process import run_stage\n"
        "def main(): raise GateError('bad', where='row 3', hint='look')\nrun_stage(main)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], check=False, capture_output=True, text=True, timeout=30
    )
    assert (done.returncode, done.stderr.strip().splitlines()) == (
        1,
        ["error: bad", "  where: row 3", "  to do: look"],
    )


def test_interrupted_is_no_exception() -> None:
    error = Interrupted(signal.SIGINT)
    assert not isinstance(error, Exception | EyasError)
    assert error.exit_code == 130
