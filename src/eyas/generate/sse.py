r"""Server-sent events at the level of bytes (HTML living standard, 9.2): from chunks of any size to `data` payloads.

Lines end with `\n`, `\r\n` or `\r` and may have any length; U+2028 and its like are ordinary characters.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

DONE = b"[DONE]"
"""The payload by which OpenAI-compatible servers end a stream."""

_LINE_END = re.compile(rb"\r\n|\n|\r")
_BOM = b"\xef\xbb\xbf"


class Decoder:
    """Feed it what arrives; it gives the payload of each event whose end has been seen.

    Only `data` lines matter here: comments (keep-alive), `event`, `id` and `retry` lines are passed over.
    """

    def __init__(self) -> None:
        self._rest: list[
            bytes
        ] = []  # pieces of a line whose end has not come; joined once, however many they are
        self._data: list[bytes] = []  # data lines of an event whose end has not come
        self._after_cr = False
        self._at_start = True

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        r"""Payloads of the events that this chunk completes; several data lines of one event are joined by `\n`."""
        if not chunk:
            return
        if self._after_cr and chunk.startswith(b"\n"):  # a \r\n cut in the middle: its line has ended already
            chunk = chunk[1:]
        self._after_cr = False
        *lines, rest = _LINE_END.split(chunk)
        if lines:
            lines[0] = b"".join((*self._rest, lines[0]))
            self._rest = []
        self._after_cr = chunk.endswith(b"\r")
        if rest:
            self._rest.append(rest)
        for line in lines:
            yield from self._line(line)

    def close(self) -> Iterator[bytes]:
        """The last event, if the stream ended without the empty line behind it.

        A line without its end is dropped: it may be cut.
        """
        if self._data:
            yield self._event()

    def _line(self, line: bytes) -> Iterator[bytes]:
        if self._at_start:
            self._at_start = False
            line = line.removeprefix(_BOM)
        if not line:
            if self._data:
                yield self._event()
            return
        name, _, value = line.partition(b":")
        if name == b"data":
            self._data.append(value.removeprefix(b" "))

    def _event(self) -> bytes:
        payload = b"\n".join(self._data)
        self._data = []
        return payload
