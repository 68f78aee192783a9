"""`eyas status`: how far generation and extraction are, from the journals that runs leave, while they run or after."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from eyas.cli.extraction import find_extraction
from eyas.cli.journals import JournalDirectory, find_journals, no_journal, think_format
from eyas.cli.observer import Observer, Status
from eyas.cli.status_view import details, overview, plain

INTERVAL_S = 1.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("dataset", nargs="?", help="only this dataset, with every detail")
    parser.add_argument(
        "--all", action="store_true", help="also journals of earlier params, not the newest alone"
    )
    parser.add_argument("--watch", action="store_true", help="refresh every second until Ctrl-C")
    parser.add_argument("--json", action="store_true", help="a JSON list, one object per journal")


def run(arguments: argparse.Namespace) -> int:
    """Print the status; returns the exit code.

    Raises:
        InputError: there is no journal.
    """
    watcher = Watcher(arguments.dataset, every_fingerprint=arguments.all)
    if arguments.json:
        return _repeat(lambda: print(json.dumps([s.to_json() for s in watcher.look()])), arguments.watch)
    if not arguments.watch:
        Console().print(watcher.view(watcher.look()))
        return 0
    return _watch(watcher)


class Watcher:
    """The journals that were asked for; a later look reads only what is new."""

    def __init__(self, dataset: str | None, *, every_fingerprint: bool) -> None:
        self._dataset = dataset
        self._every_fingerprint = every_fingerprint
        self._observers: dict[JournalDirectory, Observer] = {}
        self._think = think_format()

    def look(self) -> list[Status]:
        """The status of each journal.

        Raises:
            InputError: there is none.
        """
        journals = find_journals(self._dataset)
        if not self._every_fingerprint:
            newest = {journal.dataset: journal for journal in reversed(journals)}
            journals = [newest[name] for name in sorted(newest)]
        if not journals:
            raise no_journal(self._dataset)
        for journal in journals:
            if journal not in self._observers:
                self._observers[journal] = Observer(journal, self._think)
        return [self._observers[journal].look() for journal in journals]

    def view(self, statuses: Sequence[Status]) -> RenderableType:
        """Every detail of one dataset, or a line for each of all."""
        if self._dataset is None:
            extraction = find_extraction()
            table = overview(statuses)
            return table if extraction is None else Group(table, Text(), Text(str(extraction)))
        return Group(*(details(status) for status in statuses))


def _watch(watcher: Watcher) -> int:
    if not sys.stdout.isatty():
        return _repeat(lambda: print(*map(plain, watcher.look()), sep="\n", flush=True), again=True)
    statuses = watcher.look()
    with Live(watcher.view(statuses), screen=True, auto_refresh=False) as live:

        def refresh() -> None:
            live.update(watcher.view(watcher.look()), refresh=True)

        _repeat(refresh, again=True)
    Console().print(watcher.view(watcher.look()))
    return 0


def _repeat(action: Callable[[], None], again: bool) -> int:
    """Once, or every second until Ctrl-C."""
    try:
        action()
        while again:
            sys.stdout.flush()
            time.sleep(INTERVAL_S)
            action()
    except KeyboardInterrupt:
        pass
    return 0
