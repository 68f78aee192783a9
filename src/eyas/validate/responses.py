r"""Reading what generate wrote for one dataset: answers, failed turns, and how the prompts were rendered.

Answers are read in batches of whole lines, so that a file may be larger than memory. A line is what one `\n` ends.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from eyas import jsonl, paths
from eyas.errors import ArtifactError, EyasError
from eyas.schema import FAILED_REQUEST, RAW_RESPONSE, USAGE, Responses, check, columns_of
from eyas.validate.idlists import MARK, cut, ids_of

KEYS_LOOKED_AT = 1000
"""Lines whose keys are compared with the schema: one program writes them all."""
BATCH_BYTES = 1 << 26
"""Bytes read at a time: some thousand rows, about a row group. A longer line is read whole."""
DECODED_ROWS = 128
"""Rows decoded at a time: what the parser makes of a megabyte or so stays in the processor's cache."""
ID_FIELDS = ("prompt_token_ids", "token_ids")
"""Fields that are long lists of ids, in the order in which they stand in a line."""
LINE_SCHEMA = pl.Schema({"offset": pl.Int64, "size": pl.Int64})
"""Where a row's line stands in the file: its first byte, and its bytes without the newline."""

_BUFFER_BYTES = 1 << 18
_BLANK = (b"\n", b"\r\n", b"\r")
_HINT = "dvc repro generate"


@dataclass(frozen=True)
class ServerNotes:
    """What server_profile.json says of the answers."""

    template_kwargs: dict[str, Any]
    """The template arguments that the prompts were rendered with."""
    text_only: bool
    """The servers send no token ids, so that a row without them is whole."""


@dataclass(frozen=True)
class Block:
    """Some whole lines of a file."""

    path: Path
    lines: pl.DataFrame
    """`number` (from 1) and LINE_SCHEMA; blank lines are left out."""
    texts: list[bytes]
    """The lines themselves; their newline may be there or not."""

    def rows(self) -> pl.Series:
        """The lines as a column of text, `row`.

        Raises:
            ArtifactError: they are not UTF-8.
        """
        return _texts(self.texts, self.path)


def read_blocks(path: Path) -> Iterator[Block]:
    """The lines of a file, BATCH_BYTES at a time.

    Raises:
        ArtifactError: no such file, or it is not UTF-8.
    """
    if not path.exists():
        raise ArtifactError("no such file", where=str(path), hint=_HINT)
    offset, number = 0, 1
    with path.open("rb", buffering=_BUFFER_BYTES) as file:
        while lines := file.readlines(BATCH_BYTES):
            yield _block(lines, path, number, offset)
            offset, number = offset + sum(map(len, lines)), number + len(lines)


def responses_of(block: Block) -> pl.DataFrame:
    """Answers with the columns of schema.Responses and of LINE_SCHEMA.

    Raises:
        ArtifactError: a line does not fit the schema, or rows break it.
    """
    table = _decoded(block, RAW_RESPONSE)
    usage = [pl.col("usage").struct.field(field.name).alias(f"usage_{field.name}") for field in USAGE.fields]
    names = columns_of(Responses).names()
    table = table.with_columns(usage).select(*names, *LINE_SCHEMA)
    check(Responses, table.select(names), str(block.path))
    return table


def read_failed(path: Path) -> pl.DataFrame:
    """sample_id and turn of the lines of errors.jsonl; no rows where there is no such file."""
    schema = FAILED_REQUEST.to_schema()
    blocks = read_blocks(path) if path.exists() else ()
    return pl.concat(
        [pl.DataFrame(schema=schema), *(_decoded(block, FAILED_REQUEST).select(*schema) for block in blocks)]
    )


def block_of(path: Path, places: pl.DataFrame) -> Block:
    """The lines that stand at these offsets with these sizes (LINE_SCHEMA), in this order, numbered from 1."""
    texts = []
    with path.open("rb") as file:
        for offset, size in places.select("offset", "size").iter_rows():
            file.seek(offset)
            texts.append(file.read(size))
    return Block(path, places.select(*LINE_SCHEMA).with_row_index("number", offset=1), texts)


def unknown_keys(path: Path) -> list[str]:
    """Keys of the first lines that the schema does not have, in dotted form; they are not used anywhere."""
    found: set[str] = set()
    for line in islice(jsonl.read(path), KEYS_LOOKED_AT):
        found |= _unknown(line.value, RAW_RESPONSE, "")
    return sorted(found)


def read_server_notes(path: Path) -> ServerNotes:
    """How prompts were rendered and what the servers sent, of server_profile.json.

    Raises:
        ArtifactError: no such file, or it does not say.
    """
    try:
        values = json.loads(path.read_bytes())
        kwargs, dialect = values["chat_template_kwargs"], values["dialect"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ArtifactError(
            f"no `chat_template_kwargs` and `dialect` in the server profile: {error!r}",
            where=str(path),
            hint=_HINT,
        ) from error
    if not isinstance(kwargs, dict):
        raise ArtifactError(
            f"`chat_template_kwargs` is {kwargs!r}, not a mapping", where=str(path), hint=_HINT
        )
    return ServerNotes(kwargs, text_only=dialect in TEXT_DIALECTS)


TEXT_DIALECTS = ("openai",)
"""Dialects whose servers send no token ids."""


def errors_path(dataset: str) -> Path:
    """Where generate lists the turns that failed for good."""
    return paths.responses(dataset) / "errors.jsonl"


def _block(lines: Sequence[bytes], path: Path, number: int, offset: int) -> Block:
    lengths = np.fromiter(map(len, lines), np.int64, len(lines))
    ended = np.fromiter((line.endswith(b"\n") for line in lines), np.int64, len(lines))
    starts = offset + np.cumsum(lengths) - lengths
    table = pl.DataFrame({"offset": starts, "size": lengths - ended}).with_row_index("number", offset=number)
    texts = [line for line in lines if line not in _BLANK]
    if len(texts) < len(lines):
        table = table.filter(pl.Series([line not in _BLANK for line in lines]))
    return Block(path, table, texts)


def _decoded(block: Block, dtype: pl.Struct) -> pl.DataFrame:
    """Fields of `dtype` and LINE_SCHEMA."""
    fields = [field for field in ID_FIELDS if field in dtype.to_schema()]
    without = cut(block.texts, fields)
    ids = {field: ids_of(lists) for field, lists in without.lists.items()}
    plain = all(found is not None for found in ids.values())
    rows = _texts(without.lines if plain else block.texts, block.path)
    pieces = [rows[start : start + DECODED_ROWS] for start in range(0, max(len(rows), 1), DECODED_ROWS)]
    try:
        values = pl.concat([piece.str.json_decode(dtype) for piece in pieces]).struct.unnest()
    except pl.exceptions.PolarsError as error:
        raise _misfit(block, dtype, error) from error
    if plain:
        values = values.with_columns(
            pl.when((pl.col(field).list.first() == MARK) & found.is_not_null())
            .then(found)
            .otherwise(field)
            .alias(field)
            for field, found in ids.items()
            if found is not None
        )
    return block.lines.select(*LINE_SCHEMA).hstack(values)


def _texts(lines: Sequence[bytes], path: Path) -> pl.Series:
    try:
        return pl.Series("row", lines, dtype=pl.Binary).cast(pl.String)
    except pl.exceptions.PolarsError as error:
        raise ArtifactError(f"the file can't be read: {error}", where=str(path), hint=_HINT) from error


def _misfit(block: Block, dtype: pl.Struct, error: Exception) -> EyasError:
    """The error of the first line that does not fit."""
    for number, row in zip(block.lines["number"], block.texts, strict=True):
        where = f"{block.path}:{number}"
        try:
            jsonl.parse(row, where)
            pl.Series([row.decode()]).str.json_decode(dtype)
        except EyasError as reason:
            return reason
        except pl.exceptions.PolarsError as reason:
            return ArtifactError(f"the line does not fit the schema: {reason}", where=where, hint=_HINT)
    return ArtifactError(f"the file can't be read: {error}", where=str(block.path), hint=_HINT)


def _unknown(value: Any, dtype: Any, prefix: str) -> set[str]:
    if isinstance(dtype, pl.List) and isinstance(value, list):
        if not dtype.inner.is_nested():  # thousands of ids, and no keys
            return set()
        return set().union(*(_unknown(item, dtype.inner, prefix) for item in value))
    if not isinstance(dtype, pl.Struct) or not isinstance(value, dict):
        return set()
    fields = dict(dtype.to_schema())
    here = {f"{prefix}{key}" for key in value if key not in fields}
    return here.union(
        *(_unknown(value[key], fields[key], f"{prefix}{key}.") for key in value if key in fields)
    )
