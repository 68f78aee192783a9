from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

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


def test_a_full_disk_is_told_without_traceback(tmp_path: Path) -> None:
    script = (
        "import resource, sys\nfrom pathlib import Path\nfrom eyas.files import write_bytes\n"
        "from eyas.process import run_stage\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "run_stage(lambda: write_bytes(Path(sys.argv[1]), bytes(2000)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "rows")],
        check=False,
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert (done.returncode, done.stderr.split("\n")[1:]) == (
        1,
        ["error: File too large", "  to do: make space and run again", ""],
    )
    assert list(tmp_path.iterdir()) == []
