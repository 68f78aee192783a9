"""`eyas status` over journals of runs in every condition."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from eyas import jsonl, paths
from eyas.cli.condition import Condition, condition
from eyas.cli.journals import find_journals
from eyas.cli.observer import Observer
from eyas.errors import GateError, Interrupted
from eyas.filelock import Holder
from eyas.generate.summary import NAME
from tests.cli.runs import URL, command, directory, make_run, publish
from tests.generate.counted import answer, failed, failed_entry, journal_entry, outcome

pytestmark = pytest.mark.usefixtures("repository")

OUTCOMES = [
    outcome(answer([901, 1, 2, 902, 9], reasoning="R", flags=["lossy_text"]), sample_id="a:1"),
    outcome(answer([901, 1, 2, 3], reasoning="R", finish_reason="length"), sample_id="a:2"),
    outcome(answer([7, 8]), sample_id="a:3"),
    failed("http_400"),
]


def shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert command("status", *arguments) == 0
    return capsys.readouterr().out


def looked_at(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    (found,) = json.loads(shown(capsys, *arguments, "--json"))
    assert isinstance(found, dict)
    return found


def test_every_detail_of_a_finished_run(capsys: pytest.CaptureFixture[str]) -> None:
    make_run("a", OUTCOMES, total=10)
    text = " ".join(shown(capsys, "a").split())
    for part in (
        f"a finished 0 s ago, pid {os.getpid()}",
        "3 of 10 done (30%), 1 failed, 0 left, 0 in flight, 6 like another row or behind a failed turn",
        "67% of 3 answers, tokens: median 2, mean 2, 90 % up to 3, 2 to 3",
        "stop 67%, length 33% (1 cut by max_tokens or the context)",
        "11 generated, 12 of prompts",
        "lossy_text 1",
        "http_400 1 (permanent)",
        "last row 0 s ago",
        f"{URL} was up 0 0 3 0",
        str(directory("a")),
    ):
        assert part in text


def test_json_has_every_number(capsys: pytest.CaptureFixture[str]) -> None:
    make_run("a", OUTCOMES, total=10)
    found = looked_at(capsys, "a")
    assert found["state"] == "finished"
    assert found["alive"] is False
    assert found["rows"] == {
        "total": 10,
        "done": 3,
        "kept": 0,
        "waiting": 0,
        "failed": 1,
        "refused": 0,
        "left": 0,
        "unasked": 6,
        "in_flight": 0,
    }
    assert found["answers"]["truncated_share"] == pytest.approx(1 / 3)
    assert found["answers"]["reasoned_share"] == pytest.approx(2 / 3)
    assert found["answers"]["finish_reasons"] == {"length": 1, "stop": 2}
    assert found["answers"]["reasoning_tokens"] == {
        "known_of_answers": 2, "mean": 2.5, "median": 2, "p90": 3, "p99": 3,
    }  # fmt: skip
    assert found["failures"] == [{"kind": "permanent", "reason": "http_400", "count": 1}]
    assert found["endpoints"][0]["answered"] == 3
    assert 0 <= found["last_row_age_s"] < 60
    assert found["published"] is None


def test_without_an_argument_a_line_per_dataset_of_its_newest_fingerprint(
    capsys: pytest.CaptureFixture[str],
) -> None:
    old = make_run("a", OUTCOMES[:1], total=10, fingerprint="old")
    for file in (old / NAME, old / "rows.jsonl"):
        os.utime(file, (1e9, 1e9))
    make_run("a", OUTCOMES, total=10, fingerprint="new")
    make_run("b", OUTCOMES[:1], total=1)
    found = json.loads(shown(capsys, "--json"))
    assert [(one["dataset"], one["fingerprint"]) for one in found] == [("a", "new"), ("b", "f1")]
    everything = json.loads(shown(capsys, "--all", "--json"))
    assert [one["fingerprint"] for one in everything] == ["new", "old", "f1"]
    lines = [line.split() for line in shown(capsys).splitlines()]
    assert ["a", "finished", "3/10"] in [line[:3] for line in lines]
    assert ["b", "finished", "1/1"] in [line[:3] for line in lines]
    assert "old" in shown(capsys, "--all")


RUN = """
import sys, time
from tests.cli.runs import *
from tests.generate.counted import *
with Journal(directory("a"), {}) as journal:
    if sys.argv[1] == "starting":
        print("ready", flush=True)
        time.sleep(60)
    counts = Counts(total=10, kept=0, think=THINK)
    counts.endpoints = lambda: SERVERS
    with Display("a", counts, journal) as display:
        for number in range(3):
            done = outcome(answer(), sample_id=f"a:{number}")
            journal.append(entry(done, MODEL))
            counts.add(done, URL)
            if number == 1:
                display.refresh()
        if sys.argv[1] == "running":
            print("ready", flush=True)
            time.sleep(60)
    print("ready", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def process(request: pytest.FixtureRequest) -> Iterator[subprocess.Popen[bytes]]:
    """A run in another process: of 3 rows, the last came after its last summary."""
    root = Path(__file__).parents[2]
    environment = os.environ | {"PYTHONPATH": f"{root / 'src'}{os.pathsep}{root}"}
    run = subprocess.Popen(
        [sys.executable, "-c", RUN, request.param], stdout=subprocess.PIPE, env=environment
    )
    assert run.stdout is not None
    assert run.stdout.readline() == b"ready\n"
    yield run
    run.kill()
    run.communicate()


@pytest.mark.parametrize("process", ["running"], indirect=True)
def test_a_living_run_and_what_is_left_of_it_after_kill_9(
    process: subprocess.Popen[bytes], capsys: pytest.CaptureFixture[str]
) -> None:
    found = looked_at(capsys, "a")
    assert (found["state"], found["alive"], found["pid"]) == ("running", True, process.pid)
    assert found["rows"] == {
        "total": 10,
        "done": 3,
        "kept": 0,
        "waiting": 0,
        "failed": 0,
        "refused": 0,
        "left": 7,
        "unasked": 0,
        "in_flight": 2,
    }
    assert found["answers"]["answers"] == 3
    before = [(file.name, file.stat().st_mtime_ns, file.read_bytes()) for file in directory("a").iterdir()]
    process.kill()
    process.wait()
    found = looked_at(capsys, "a")
    assert (found["state"], found["alive"]) == ("killed", False)
    assert f"pid {process.pid} is gone without a word" in found["detail"]
    assert found["rows"] == {
        "total": 10,
        "done": 3,
        "kept": 0,
        "waiting": 0,
        "failed": 0,
        "refused": 0,
        "left": 7,
        "unasked": 0,
        "in_flight": 0,
    }
    assert found["rate"]["eta_s"] is None
    assert f"a killed: pid {process.pid} is gone" in shown(capsys)
    after = [(file.name, file.stat().st_mtime_ns, file.read_bytes()) for file in directory("a").iterdir()]
    assert after == before


@pytest.mark.parametrize("process", ["starting"], indirect=True)
def test_a_run_that_has_asked_nothing_yet(
    process: subprocess.Popen[bytes], capsys: pytest.CaptureFixture[str]
) -> None:
    assert looked_at(capsys)["state"] == "starting"


@pytest.mark.parametrize("process", ["finishing"], indirect=True)
def test_a_run_that_publishes(process: subprocess.Popen[bytes], capsys: pytest.CaptureFixture[str]) -> None:
    found = looked_at(capsys)
    assert (found["state"], found["alive"]) == ("finishing", True)


@pytest.mark.parametrize(
    ("error", "state", "words"),
    [
        (Interrupted(signal.SIGINT), "stopped", "stopped by signal 2"),
        (GateError("no reasoning", hint="start it with a parser"), "failed", "to do: start it with a parser"),
    ],
)
def test_a_run_that_ended_early_says_why(
    error: BaseException, state: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    make_run("a", OUTCOMES, total=10, error=error)
    found = looked_at(capsys)
    assert found["state"] == state
    assert words in found["detail"]
    assert words in " ".join(shown(capsys).split())


def test_a_summary_from_a_hanging_run() -> None:
    summary = {"state": "running", "pid": 5, "written_at": 1000.0, "message": None}
    assert condition(summary, Holder(5, holds=True), 1002.0) == Condition("running", "pid 5")
    hanging = condition(summary, Holder(5, holds=True), 1100.0)
    assert hanging.name == "running"
    assert "no sign of life for 100 s" in hanging.detail
    assert condition(summary, Holder(6, holds=True), 1002.0).name == "starting"
    assert condition(summary, Holder(5, holds=False), 1002.0).name == "killed"
    assert condition(summary, None, 1002.0).name == "killed"
    assert condition(None, None, 1002.0).name == "unknown"


def test_without_a_summary_every_row_is_counted(capsys: pytest.CaptureFixture[str]) -> None:
    (make_run("a", [*OUTCOMES, outcome(answer(), sample_id="a:4")], total=10) / NAME).unlink()
    path = paths.prompts("a")
    path.parent.mkdir(parents=True)
    pl.DataFrame({"sample_id": [str(number) for number in range(7)]}).write_parquet(path)
    found = looked_at(capsys)
    assert found["state"] == "unknown"
    assert found["rows"] is None
    assert found["answers"]["answers"] == 4
    text = " ".join(shown(capsys, "a").split())
    assert "4 answers in the journal, 1 keys failed; the prompt table has 7 rows" in text
    assert ["a", "unknown", "4/7", "1"] in [line.split()[:4] for line in shown(capsys).splitlines()]


def test_rows_behind_the_summary_and_a_torn_last_line(capsys: pytest.CaptureFixture[str]) -> None:
    rows = make_run("a", OUTCOMES, total=10) / "rows.jsonl"
    new = [
        journal_entry("x", answer(finish_reason="length")),
        failed_entry("y", "http_400"),
        failed_entry("z", "abort"),
    ]
    torn = jsonl.encode(journal_entry("w", answer(content="é")))
    with rows.open("ab") as file:
        file.writelines(map(jsonl.encode, new))
        file.write(b"garbage\n" + torn[: torn.index("é".encode()) + 1])
    found = looked_at(capsys)
    assert found["rows"] == {
        "total": 10,
        "done": 4,
        "kept": 0,
        "waiting": 0,
        "failed": 3,
        "refused": 0,
        "left": 0,
        "unasked": 3,
        "in_flight": 0,
    }
    assert found["answers"]["finish_reasons"] == {"length": 2, "stop": 2}
    assert {(one["reason"], one["count"]) for one in found["failures"]} == {("http_400", 2), ("abort", 1)}
    assert found["damaged_lines"] == 1
    assert "1 lines of rows.jsonl are no entries" in shown(capsys, "a")


@pytest.mark.parametrize("columns", [40, 60, 80])
def test_a_narrow_terminal_loses_nothing(
    columns: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    make_run("some-dataset", OUTCOMES, total=10)
    text = " ".join(shown(capsys).split())
    for part in ("some-dataset", "finished", "3/10", "33%"):
        assert part in text


def test_answers_that_are_judged_behind_the_summary_wait_no_more(capsys: pytest.CaptureFixture[str]) -> None:
    """Killed while the verdict was being written: five wait, three of them are judged already."""
    path = make_run("a", [], total=10)
    summary = json.loads((path / NAME).read_bytes())
    summary["rows"] |= {"waiting": 5, "left": 5}
    (path / NAME).write_text(json.dumps(summary))
    with (path / "rows.jsonl").open("ab") as file:
        file.writelines(jsonl.encode(journal_entry(f"k{number}", answer())) for number in range(3))
    rows = looked_at(capsys)["rows"]
    assert [rows[name] for name in ("done", "waiting", "left", "unasked")] == [3, 2, 5, 0]
    with (path / "rows.jsonl").open("ab") as file:
        file.writelines(jsonl.encode(journal_entry(f"k{number}", answer())) for number in range(3, 9))
    rows = looked_at(capsys)["rows"]
    assert [rows[name] for name in ("done", "waiting", "left", "unasked")] == [9, 0, 1, 0]


def test_what_a_server_says_in_an_error_is_shown_harmless(capsys: pytest.CaptureFixture[str]) -> None:
    path = make_run("a", OUTCOMES, total=10)
    summary = json.loads((path / NAME).read_bytes())
    summary |= {"state": "failed", "message": "it said \x1b[31m\nand more"}
    summary["endpoints"][0]["url"] = "http://[fe80::1]:8000/v1"
    (path / NAME).write_text(json.dumps(summary))
    for arguments in (["a"], []):
        text = shown(capsys, *arguments)
        assert "it said \\x1b[31m" in text
        assert "\x1b" not in text
    assert "http://[fe80::1]:8000/v1" in shown(capsys, "a")


def test_what_is_published_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    make_run("a", OUTCOMES, total=4)
    path = publish("a", [{"sample_id": "a:1"}, {"sample_id": "a:2"}])
    published = looked_at(capsys)["published"]
    assert (published["path"], published["rows"]) == (str(path.resolve()), 2)
    assert "2 rows, 0 s ago" in shown(capsys, "a")
    paths.server_profile("a").unlink()
    assert looked_at(capsys)["published"]["rows"] is None


@pytest.mark.parametrize("arguments", [[], ["a"], ["--json"], ["--watch"]])
def test_no_journal_is_said_with_exit_code_1(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert command("status", *arguments) == 1
    assert "no dataset has been generated here yet" in capsys.readouterr().err


def test_an_unknown_dataset_is_told_the_known_ones(capsys: pytest.CaptureFixture[str]) -> None:
    make_run("a", OUTCOMES, total=4)
    assert command("status", "b") == 1
    assert "dataset 'b' has no journal" in (said := capsys.readouterr().err)
    assert "datasets with a journal: a" in said


def test_an_empty_directory_is_a_journal_without_rows(capsys: pytest.CaptureFixture[str]) -> None:
    directory("a").mkdir(parents=True)
    found = looked_at(capsys)
    assert (found["state"], found["answers"]["answers"], found["last_row_age_s"]) == ("unknown", 0, None)
    assert "a" in shown(capsys)


def test_watching_shows_new_rows_until_ctrl_c(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = make_run("a", OUTCOMES, total=10) / "rows.jsonl"
    naps: list[float] = []

    def nap(seconds: float) -> None:
        naps.append(seconds)
        if len(naps) == 3:
            raise KeyboardInterrupt
        with rows.open("ab") as file:
            file.write(jsonl.encode(journal_entry(str(len(naps)), answer())))

    monkeypatch.setattr(time, "sleep", nap)
    lines = shown(capsys, "--watch").splitlines()
    assert naps == [1.0, 1.0, 1.0]
    assert [line.split(", ")[1] for line in lines] == ["3/10 rows", "4/10 rows", "5/10 rows"]
    naps.clear()
    assert [
        json.loads(line)[0]["rows"]["done"] for line in shown(capsys, "--watch", "--json").splitlines()
    ] == [5, 6, 7]


def test_a_large_journal_is_read_only_behind_its_summary(monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run("a", OUTCOMES, total=10)
    summary = json.loads((run / NAME).read_bytes())
    with (run / "rows.jsonl").open("r+b") as file:  # 100 MB, most of it a hole
        file.truncate(100_000_000)
        file.seek(0, 2)
        file.write(b"\n")
        summary["journal"]["bytes"] = file.tell()
        file.write(jsonl.encode(journal_entry("x", answer())))
    (run / NAME).write_text(json.dumps(summary))
    (journal,) = find_journals("a")
    observed = Observer(journal, None).look()
    assert observed.count.size == (run / "rows.jsonl").stat().st_size
    assert observed.count.damaged == 0
    assert observed.summary is not None
    assert observed.summary["rows"]["done"] == 4
