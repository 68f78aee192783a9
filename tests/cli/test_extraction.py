"""`eyas status` over the journal of an extraction."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from eyas import paths
from eyas.cli.extraction import ExtractionStatus, find_extraction
from tests.cli.runs import command, make_run

pytestmark = pytest.mark.usefixtures("repository")


def leave_status(name: str = "f1", *, age_s: float = 3.0, **values: Any) -> Path:
    """What a run writes."""
    folder = paths.journal("extract") / name
    folder.mkdir(parents=True, exist_ok=True)
    status = {
        "state": "running",
        "pid": 1,
        "updated": time.time() - age_s,
        "tokens": {"total": 1000, "computed": 300, "resumed": 200},
        "bytes": {"total": 4_000_000_000, "written": 2_000_000_000},
        "tokens_per_s": 50.0,
        "eta_s": 10.0,
    }
    (folder / "status.json").write_text(json.dumps(status | values))
    return folder


def test_a_running_extraction_stands_below_the_datasets(capsys: pytest.CaptureFixture[str]) -> None:
    make_run("a", [], total=1)
    leave_status()
    assert command("status") == 0
    text = " ".join(capsys.readouterr().out.split())
    assert text.endswith("extract running: 500/1,000 tokens (50%), 2.00/4.00 GB, 50 tokens/s, ETA 0:10")


def test_nothing_is_said_where_nothing_was_extracted(capsys: pytest.CaptureFixture[str]) -> None:
    make_run("a", [], total=1)
    assert command("status") == 0
    assert "extract" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"state": "finished"}, "extract finished: 500/1,000 tokens (50%), 2.00/4.00 GB, 3 s ago"),
        ({"state": "stopped"}, "3 s ago; `dvc repro` goes on from the finished shards"),
        ({"tokens_per_s": None, "eta_s": None}, "extract running: 500/1,000 tokens (50%), 2.00/4.00 GB"),
        ({"age_s": 300.0}, "no sign of life for 5 min"),
        ({"tokens": {"total": 0, "computed": 0, "resumed": 0}}, "extract running: 0/0 tokens, 2.00"),
    ],
)
def test_in_words(values: dict[str, Any], text: str) -> None:
    assert text in str(ExtractionStatus.of(leave_status(**values)))


def test_a_run_that_is_gone_without_a_word_was_killed() -> None:
    folder = leave_status()
    code = "import sys; from pathlib import Path; from eyas import filelock; filelock.take(Path(sys.argv[1]))"
    subprocess.run([sys.executable, "-c", code, str(folder / "lock")], check=True)
    status = ExtractionStatus.of(folder)
    assert status is not None
    assert status.state == "killed"


def test_the_one_that_was_written_last_is_shown_and_damaged_ones_are_not() -> None:
    leave_status("old", age_s=500)
    leave_status("new")
    (leave_status("broken") / "status.json").write_text("{")
    status = find_extraction()
    assert status is not None
    assert status.fingerprint == "new"
