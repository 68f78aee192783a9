"""What is counted of a journal's lines, from their bytes: a gigabyte takes a second instead of ten.

Inside a JSON string every quote is escaped, so the bytes `"finish_reason":"` are a key and never text. What can't be
found this way is parsed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eyas import jsonl
from eyas.errors import InputError
from eyas.generate.tally import AnswerFacts, answer_facts
from eyas.linehead import plain_head
from eyas.target.spec import ThinkFormat

UNJUDGED = "unjudged"
"""The reason of an entry that holds an answer which the gate has not judged yet."""

_HEAD_BYTES = 4096
_TAIL_BYTES = 1024
"""Where the keys before an answer's texts, and those behind its ids, are looked for."""

_REASONING = re.compile(rb'"answer":\{"model":(?:null|"[^"\\]*"),"reasoning":(?P<text>null|"(?!"))')
_END = re.compile(
    rb'"finish_reason":"(?P<finish>[a-z_]+)","stop_reason":(?:null|\d+|"[^"\\]*"),'
    rb'"usage":\{"prompt_tokens":(?P<prompt>\d+),"completion_tokens":(?P<completion>\d+),'
    rb'"reasoning_tokens":(?P<reasoning>null|\d+)\}'
)
_AT = re.compile(rb'"at":(?P<at>[0-9.e+]+)[,}]')


@dataclass(frozen=True)
class FailedAttempt:
    """An entry that records no answer."""

    kind: str | None
    reason: str


@dataclass(frozen=True)
class CountedLine:
    """One line of a journal."""

    offset: int
    size: int
    key: str | None
    """None if the line is damaged; it then counts as nothing."""
    outcome: AnswerFacts | FailedAttempt | None


def read_lines(path: Path, offset: int, think: ThinkFormat | None) -> Iterator[CountedLine]:
    """The whole lines from a byte offset on. A last line without newline is still being written, or torn: left out."""
    with path.open("rb") as file:
        file.seek(offset)
        for line in file:
            if not line.endswith(b"\n"):
                return
            yield _counted(line, offset, think)
            offset += len(line)


def _counted(line: bytes, offset: int, think: ThinkFormat | None) -> CountedLine:
    head = plain_head(line)
    if head is not None and not head.is_error:
        facts = quick_facts(line, think)
        if facts is not None:
            return CountedLine(offset, len(line), head.key, facts)
    try:
        entry = jsonl.parse(line, f"byte {offset}")
        return CountedLine(offset, len(line), str(entry["key"]), entry_outcome(entry, think))
    except (InputError, KeyError, TypeError, AttributeError):
        return CountedLine(offset, len(line), None, None)


def entry_outcome(entry: dict[str, Any], think: ThinkFormat | None) -> AnswerFacts | FailedAttempt:
    """What a parsed entry records."""
    error = entry.get("error")
    if error is not None:
        return FailedAttempt(error.get("kind"), str(error.get("reason")))
    return answer_facts(entry["answer"], think, entry.get("at"))


def quick_facts(line: bytes, think: ThinkFormat | None) -> AnswerFacts | None:
    """The facts of an answer's line by its bytes; None if the line is not laid out as expected."""
    reasoning = _REASONING.search(line, 0, _HEAD_BYTES)
    end = _END.search(line, reasoning.end()) if reasoning else None
    at = _AT.search(line, max(0, len(line) - _TAIL_BYTES))
    flags = _flags(line, end.end()) if end else None
    if reasoning is None or end is None or at is None or flags is None:
        return None
    finish_reason = end["finish"].decode(errors="replace")
    reasoned = reasoning["text"] == b'"'
    length = None if end["reasoning"] == b"null" else int(end["reasoning"])
    if reasoned and think is not None:
        length = _reasoning_length(line, end.end(), think, truncated=finish_reason == "length")
        if length is None:
            return None
    return AnswerFacts(
        finish_reason=finish_reason,
        prompt_tokens=int(end["prompt"]),
        generated_tokens=int(end["completion"]),
        reasoned=reasoned,
        reasoning_tokens=length if reasoned else None,
        flags=flags,
        at=float(at["at"]),
    )


def _reasoning_length(line: bytes, begin: int, think: ThinkFormat, *, truncated: bool) -> int | None:
    """As `tally.reasoning_length`, on the digits of the ids."""
    begin = line.find(b'"token_ids":[', begin)
    end = line.find(b"]", begin)
    if begin < 0 or end < 0:
        return None
    if end == begin + 13:
        return 0 if truncated else None
    ids = b"," + line[begin + 13 : end] + b","
    start, marker = _find(ids, think.start_ids, 0)
    begin = start + len(marker) - 1 if start >= 0 else 0
    found = [_find(ids, part, begin)[0] for part in (think.end_ids, *think.implicit_end_ids)]
    ends = [position for position in found if position >= 0]
    if not ends and not truncated:
        return None
    return ids.count(b",", begin, min(ends) if ends else len(ids) - 1)


def _find(ids: bytes, part: list[int], begin: int) -> tuple[int, bytes]:
    pattern = b"," + ",".join(map(str, part)).encode() + b","
    return (ids.find(pattern, begin) if part else -1), pattern


def _flags(line: bytes, begin: int) -> tuple[str, ...] | None:
    """The names in `"flags":["a","b"]`; None if there is no such list."""
    at = line.find(b'"flags":[', begin)
    end = line.find(b"]", at)
    if at < 0 or end < 0:
        return None
    names = line[at + 9 : end].decode(errors="replace")
    return tuple(name.strip('"') for name in names.split(",")) if names else ()
