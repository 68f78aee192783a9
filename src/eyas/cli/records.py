"""The rows that `eyas peek` shows: where they are read from, and which of them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from eyas import jsonl, paths
from eyas.cli.journals import JournalDirectory, newest_journal, no_journal
from eyas.errors import InputError

_BLOCK_BYTES = 1 << 20
_ABSENT = object()


@dataclass(frozen=True)
class Source:
    """A file of rows."""

    path: Path
    journal: JournalDirectory | None
    """None for published responses."""
    why: str


@dataclass(frozen=True)
class Record:
    """One row as it is shown."""

    offset: int
    """Byte offset of its line."""
    values: dict[str, Any]
    """Keys of the row; of a journal's entry, those of its answer and of its error stand among them."""
    damage: str | None = None
    """Why the line is no row; `values` is then empty."""

    @property
    def is_error(self) -> bool:
        """Whether it says why there is no answer."""
        return "reason" in self.values


def choose_source(dataset: str, *, errors: bool) -> Source:
    """The journal while a run goes on, or if it has rows that are not published; else what is published.

    Raises:
        InputError: neither is there.
    """
    journal = newest_journal(dataset)
    responses = paths.root() / paths.raw_responses(dataset)
    published = responses.with_name("errors.jsonl") if errors else responses
    if journal is None or not journal.rows.exists():
        if not published.exists():
            raise no_journal(dataset)
        return Source(published, None, "published")
    holder = journal.holder()
    if holder is not None and holder.holds:
        return Source(journal.rows, journal, f"journal, pid {holder.pid} is writing it")
    if not published.exists():
        return Source(journal.rows, journal, "journal, nothing is published")
    if journal.rows.stat().st_mtime > responses.stat().st_mtime:
        return Source(journal.rows, journal, "journal, newer than what is published")
    return Source(published, None, "published")


def newest_first(source: Source, containing: str | None = None) -> Iterator[Record]:
    """Rows from the end of a file on. In a journal only the last line of each key, as the journal itself counts.

    `containing`: only rows with this text, which saves parsing the others. A last line without newline is left out: it
    is being written, or torn.
    """
    seen: set[str] = set()
    needles = (
        []
        if containing is None
        else [json.dumps(containing, ensure_ascii=ascii_) for ascii_ in (True, False)]
    )
    wanted = [needle.encode() for needle in needles]
    for line in lines_backwards(source.path):
        if wanted and not any(needle in line.content for needle in wanted):
            continue
        record = parse_record(line.content, line.offset)
        key = record.values.get("key") if source.journal else None
        if key is not None:
            if key in seen:
                continue
            seen.add(key)
        yield record


def parse_record(line: bytes, offset: int) -> Record:
    """A line as a record; damage is told, not raised."""
    try:
        row = jsonl.parse(line, f"byte {offset}")
    except InputError as error:
        return Record(offset, {}, error.what)
    if not isinstance(row, dict):
        return Record(offset, {}, f"a line of JSON, but {type(row).__name__} and no row")
    values = {key: value for key, value in row.items() if key not in ("answer", "error")}
    for part in (row.get("answer"), row.get("error")):
        values |= part if isinstance(part, dict) else {}
    return Record(offset, values)


@dataclass(frozen=True)
class RawLine:
    """A line's bytes without its newline, and where it starts."""

    offset: int
    content: bytes


def lines_backwards(path: Path, block: int = _BLOCK_BYTES) -> Iterator[RawLine]:
    """The lines that end with a newline, the last first."""
    with path.open("rb") as file:
        begin = jsonl.last_line_start(file.fileno(), file.seek(0, 2))
        if not begin:
            return
        begin -= 1  # the newline that ends the last line
        behind: list[bytes] = []  # parts of the line whose start is not read yet, last part first
        while begin > 0:
            start = max(0, begin - block)
            file.seek(start)
            first, *rest = file.read(begin - start).split(b"\n")
            end = begin
            for part in reversed(rest):
                yield RawLine(end - len(part), part + b"".join(reversed(behind)))
                end -= len(part) + 1
                behind = []
            behind.append(first)
            begin = start
        yield RawLine(0, b"".join(reversed(behind)))


@dataclass(frozen=True)
class Condition:
    """`key=value`: what a row must hold. A dot goes into a nested object; in a list, one item must be equal."""

    key: str
    value: str

    @classmethod
    def parse(cls, text: str) -> Condition:
        """Raises InputError if there is no `=`."""
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise InputError(
                f"--where {text}: not of the form key=value", hint="--where finish_reason=length"
            )
        return cls(key, value)

    def found(self, values: Mapping[str, Any]) -> Any:
        """The row's value under the key."""
        value: Any = values
        for name in self.key.split("."):
            if not isinstance(value, Mapping) or name not in value:
                return _ABSENT
            value = value[name]
        return value

    def holds(self, values: Mapping[str, Any]) -> bool:
        value = self.found(values)
        items = value if isinstance(value, list) else [value]
        return value is not _ABSENT and any(_equals(item, self.value) for item in items)


def _equals(item: Any, text: str) -> bool:
    """Whether a JSON value is what was typed: text as it is, anything else as JSON writes it."""
    if isinstance(item, str):
        return item == text
    if isinstance(item, int | float) and not isinstance(item, bool):
        try:
            return item == float(text)
        except ValueError:
            return False
    return json.dumps(item, separators=(",", ":")) == text.replace(" ", "")


@dataclass
class Selection:
    """Rows that fit, and what the others had instead."""

    sample_id: str | None
    conditions: Sequence[Condition]
    errors: bool
    looked_at: int = 0
    """Rows that were looked at."""
    values: Counter[str] = field(default_factory=Counter)
    """What the first condition's key holds in the rows that were looked at."""

    def take(self, records: Iterator[Record], count: int) -> list[Record]:
        """The first `count` rows that fit."""
        taken: list[Record] = []
        while len(taken) < count and (record := next(records, None)) is not None:
            if self._fits(record):
                taken.append(record)
        return taken

    def _fits(self, record: Record) -> bool:
        if record.damage is not None:
            return self.errors and not self.conditions and self.sample_id is None
        if record.is_error != self.errors and self.sample_id is None:
            return False
        self.looked_at += 1
        if self.conditions:
            value = self.conditions[0].found(record.values)
            shown = (
                "(no such key)"
                if value is _ABSENT
                else value
                if isinstance(value, str)
                else json.dumps(value)
            )
            if len(self.values) < 1000 or shown in self.values:
                self.values[shown] += 1
        if self.sample_id is not None and record.values.get("sample_id") != self.sample_id:
            return False
        return all(condition.holds(record.values) for condition in self.conditions)


def prompt_messages(dataset: str, sample_id: Any) -> list[dict[str, Any]]:
    """The messages of a prompt; none if there is no table or no such row. Polars is imported only here."""
    path = paths.root() / paths.prompts(dataset)
    if not path.exists():
        return []
    import polars as pl

    try:
        found = (
            pl.scan_parquet(path).filter(pl.col("sample_id") == str(sample_id)).select("messages").collect()
        )
    except (pl.exceptions.PolarsError, OSError):
        return []
    return [] if found.is_empty() else list(found["messages"][0].to_list())
