r"""JSON Lines at the level of bytes: one line is what one `\n` ends, and every line is strict JSON in UTF-8.

Text tools split lines at U+2028, U+0085 and others that are ordinary characters inside a JSON string, and JSON
readers disagree on duplicate keys, NaN and lone surrogates. Here the first can't happen and the others are refused
on reading; on writing, a lone surrogate (half a character, which no UTF-8 file can hold) becomes U+FFFD.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from eyas.errors import InputError
from eyas.files import atomic_file

_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))


@dataclass(frozen=True)
class Line:
    """One line of a file, parsed."""

    number: int
    """From 1."""
    offset: int
    """Byte offset of its first byte."""
    value: Any


def parse(line: bytes, where: str) -> Any:
    """Parse one line (with or without its newline) as strict JSON.

    Raises:
        InputError: invalid UTF-8 or JSON, a duplicate key, NaN or a number too large; `where` names file and line.
    """
    try:
        return json.loads(
            line.removesuffix(b"\n").decode(),
            object_pairs_hook=_unique,
            parse_constant=_refuse_constant,
            parse_float=_finite,
        )
    except (ValueError, RecursionError) as error:
        raise InputError(f"not a line of strict JSON: {error}", where=where) from error


def encode(value: Any) -> bytes:
    r"""One line with its `\n`. Lone surrogates become U+FFFD (see `has_surrogates`).

    Raises:
        ValueError: the value holds NaN or infinity.
    """
    text = _ENCODER.encode(value)
    try:
        return text.encode() + b"\n"
    except UnicodeEncodeError:
        return replace_surrogates(text).encode() + b"\n"


def has_surrogates(value: Any) -> bool:
    """Whether any string of a JSON value holds a lone surrogate, so that writing it would change it."""
    text = json.dumps(value, ensure_ascii=False)
    return replace_surrogates(text) != text


def replace_surrogates(text: str) -> str:
    """Text with every lone surrogate replaced by U+FFFD."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return "".join("\ufffd" if "\ud800" <= character <= "\udfff" else character for character in text)
    return text


def read(path: Path) -> Iterator[Line]:
    """All lines of a file, lazily. The last one may lack its newline.

    Raises:
        InputError: no such file, or a line is empty or not strict JSON; names file and line.
    """
    try:
        file = path.open("rb")
    except FileNotFoundError as error:
        raise InputError("no such file", where=str(path)) from error
    with file:
        offset = 0
        for number, line in enumerate(file, 1):
            yield Line(number, offset, parse(line, f"{path}:{number}"))
            offset += len(line)


def write(path: Path, values: Iterable[Any]) -> int:
    """Write values one per line, atomically; returns how many."""
    count = 0
    with atomic_file(path) as temporary, temporary.open("wb") as file:
        for value in values:
            file.write(encode(value))
            count += 1
    return count


def repair_tail(descriptor: int, is_whole: Callable[[Any], bool]) -> int:
    """Make a file end with a newline; returns its size. For its only writer, after a kill or a power loss.

    A last line without newline is completed if it parses and `is_whole`; else it is torn, perhaps inside a character,
    and cut off, so that the next line can't be glued to it.
    """
    size = os.fstat(descriptor).st_size
    start = last_line_start(descriptor, size)
    if start == size:
        return size
    try:
        whole = is_whole(parse(os.pread(descriptor, size - start, start), "the last line"))
    except InputError:
        whole = False
    if not whole:
        os.ftruncate(descriptor, start)
        return start
    os.pwrite(descriptor, b"\n", size)
    return size + 1


def last_line_start(descriptor: int, size: int, block: int = 1 << 16) -> int:
    """Offset behind the last newline of a file's first `size` bytes, 0 if there is none."""
    end = size
    while end > 0:
        begin = max(0, end - block)
        newline = os.pread(descriptor, end - begin, begin).rfind(b"\n")
        if newline >= 0:
            return begin + newline + 1
        end = begin
    return 0


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        names = [name for name, _ in pairs]
        duplicate = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"duplicate key {duplicate!r}")
    return value


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"number out of range: {text}")
    return number
