"""Putting the events of a stream of SGLang's /generate together.

Each event holds all that was generated so far, or with `--incremental-streaming-output` what is new. Which of the two
shows in the number of ids beside `completion_tokens`. A stream that changes from one to the other, or in which ids and
text disagree about it, is refused (THUDM/slime#2272).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from eyas.generate.dialects import endings
from eyas.generate.dialects.ids import read_ids
from eyas.generate.failure import RowFailure, content, refuse_error, transient
from eyas.generate.record import Answer

_ENOUGH = 3
"""So many texts, each longer than the one before and beginning with it, are no accident."""


class GenerateCollector:
    """Collects one stream of /generate."""

    def __init__(self, read: Callable[[Any], Answer]) -> None:
        self._read = read
        self._meta: Mapping[str, Any] = {}
        self._ids: list[int] = []
        self._cumulative: bool | None = None
        """None until an event shows it."""
        self._text = _Text()

    def feed(self, event: Any) -> None:
        if not isinstance(event, Mapping):
            raise transient("not_an_object", f"a stream event is {type(event).__name__}, not an object")
        refuse_error(event)
        meta = event.get("meta_info")
        self._meta = meta if isinstance(meta, Mapping) else self._meta
        if self._meta.get("finish_reason") is not None:
            endings.finish_reason(self._meta["finish_reason"])
        self._take(read_ids(event.get("output_ids"), "output_ids"), self._meta.get("completion_tokens"))
        text = event.get("text")
        if not isinstance(text, str | None):
            raise content("content_type", f"`text` is {type(text).__name__}, not text")
        self._text.add(text or "", cumulative=self._cumulative is True)

    def answer(self, done: bool) -> Answer:
        """See Collector. The event with the finish reason is the last, with or without `[DONE]`."""
        if self._meta.get("finish_reason") is None:
            raise transient("unfinished", "the stream ended before its last event")
        text = self._text.whole(cumulative=self._cumulative)
        return self._read({"text": text, "output_ids": self._ids, "meta_info": self._meta})

    def _take(self, ids: list[int], count: Any) -> None:
        if not self._ids:
            self._ids = list(ids)
            return
        known = count if isinstance(count, int) else None
        whole = self._continues(ids, checked=known is not None) and known in (None, len(ids))
        new = known in (None, len(self._ids) + len(ids))
        if self._cumulative is None:
            self._cumulative = whole
        if not (whole if self._cumulative else new):
            raise _mixture(f"{len(self._ids)} ids, then {len(ids)} with completion_tokens {count}")
        if self._cumulative:
            self._ids = ids
        else:
            self._ids.extend(ids)

    def _continues(self, ids: list[int], *, checked: bool) -> bool:
        """Whether ids begin with those before; `checked`: their number is confirmed, so that the last one will do."""
        have = len(self._ids)
        start = have - 1 if checked else 0
        return len(ids) >= have and ids[start:have] == self._ids[start:]


class _Text:
    """The text of a stream, under either reading."""

    def __init__(self) -> None:
        self._parts: list[str] = []
        self._last = ""
        self._nested = True
        """Each text begins with the one before."""
        self._grown = 0

    def add(self, text: str, *, cumulative: bool) -> None:
        self._nested = self._nested and text.startswith(self._last)
        self._grown += len(text) > len(self._last)
        self._last = text
        if cumulative:
            self._parts.clear()
        else:
            self._parts.append(text)

    def whole(self, *, cumulative: bool | None) -> str:
        """All of it. Where ids did not show the kind of the stream, the texts do.

        Raises:
            RowFailure: the texts are not of the kind that the ids are.
        """
        if cumulative is None:
            return self._last if self._nested else "".join(self._parts)
        if cumulative:
            if not self._nested:
                raise _mixture("cumulative ids with texts that are not")
            return self._last
        if self._nested and self._grown >= _ENOUGH:
            raise _mixture("incremental ids with cumulative texts")
        return "".join(self._parts)


def _mixture(detail: str) -> RowFailure:
    return content("mixed_stream", f"the stream is neither cumulative nor incremental: {detail}")
