"""Journals as runs leave them, below the working directory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from eyas import jsonl, paths
from eyas.cli.main import main
from eyas.generate.entry import entry
from eyas.generate.gate import Outcome
from eyas.generate.progress import Counts, Display
from eyas.journal import Journal
from eyas.serving.endpoint import ModelInfo
from tests.generate.counted import THINK

URL = "http://127.0.0.1:1/v1"
MODEL = ModelInfo("tiny", 99, "1")
SERVERS: Sequence[dict[str, Any]] = [{"url": URL, "state": "up", "in_flight": 2, "window": 8}]


def directory(dataset: str, fingerprint: str = "f1") -> Path:
    return paths.journal("generate") / dataset / fingerprint


def make_run(
    dataset: str,
    outcomes: Iterable[Outcome],
    total: int,
    *,
    fingerprint: str = "f1",
    error: BaseException | None = None,
) -> Path:
    """A run that has ended, by `error` if there is one; returns its journal's directory."""
    try:
        with Journal(directory(dataset, fingerprint), {"fingerprint": fingerprint}) as journal:
            counts = Counts(total=total, kept=0, think=THINK)
            counts.endpoints = lambda: SERVERS
            with Display(dataset, counts, journal) as display:
                for outcome in outcomes:
                    journal.append(entry(outcome, MODEL))
                    counts.add(outcome, URL)
                display.refresh()
                if error is not None:
                    raise error
    except BaseException as raised:
        if raised is not error:
            raise
    return directory(dataset, fingerprint)


def publish(dataset: str, rows: Sequence[dict[str, Any]], errors: Sequence[dict[str, Any]] = ()) -> Path:
    """data/responses of a dataset."""
    jsonl.write(paths.raw_responses(dataset), rows)
    jsonl.write(paths.responses(dataset) / "errors.jsonl", errors)
    paths.server_profile(dataset).write_text(f'{{"rows": {len(rows)}}}')
    return paths.raw_responses(dataset)


def command(*arguments: str) -> int:
    """`eyas` with these arguments; its exit code."""
    return main(arguments)
