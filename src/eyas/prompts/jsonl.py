"""Source `jsonl`: a file below sources/, one JSON object per line."""

from __future__ import annotations

from collections import Counter
from pathlib import Path, PurePosixPath
from typing import Any

from eyas import jsonl, paths
from eyas.datasets import DatasetParams
from eyas.errors import InputError
from eyas.prompts.rows import Problem, RejectedRow, SourceRow, SourceRows

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_KEYS = ("id", "task", "tools")
"""Keys of a row that are read, besides the dataset's column."""


def read_jsonl(name: str, dataset: DatasetParams) -> SourceRows:
    """The first `dataset.count` rows of a file (all if null); a bad row is rejected and costs no other row.

    A row's id is its own `id`, or its line number where it has none.

    Raises:
        InputError: no such file, no rows, no row has the column, or two rows have the same id.
    """
    path = _source_path(name, dataset)
    objects: list[tuple[int, dict[str, Any]]] = []
    rejected: list[RejectedRow] = []
    for number, line in enumerate(path.read_bytes().removeprefix(_BYTE_ORDER_MARK).split(b"\n"), start=1):
        if not line.strip():
            continue
        if dataset.count is not None and len(objects) + len(rejected) == dataset.count:
            break
        parsed = _parse(line, _place(path, number))
        if isinstance(parsed, Problem):
            rejected.append(_rejected(path, number, parsed))
        else:
            objects.append((number, parsed))
    column = _column(name, dataset, path, [row for _, row in objects])
    rows: list[SourceRow] = []
    for number, row in objects:
        checked = _source_row(path, number, row, column)
        if isinstance(checked, SourceRow):
            rows.append(checked)
        else:
            rejected.append(checked)
    _refuse_equal_ids(rows)
    return SourceRows(rows, rejected, _unused([row for _, row in objects], column))


def _source_path(name: str, dataset: DatasetParams) -> Path:
    relative = PurePosixPath(dataset.path or "")
    if relative.is_absolute() or ".." in relative.parts:
        raise InputError(
            f"`datasets.{name}.path` must be below {paths.SOURCES}/, not {dataset.path!r}",
            where=str(paths.PARAMS),
        )
    path = paths.SOURCES / relative
    if not path.is_file():
        raise InputError(f"no such file, named by `datasets.{name}.path`", where=str(path))
    return path


def _parse(line: bytes, where: str) -> dict[str, Any] | Problem:
    try:
        value = jsonl.parse(line, where)
    except InputError as error:
        return Problem("not_json", error.what)
    return value if isinstance(value, dict) else Problem("not_an_object", f"the line holds {str(value)[:80]}")


def _column(name: str, dataset: DatasetParams, path: Path, rows: list[dict[str, Any]]) -> str:
    columns = sorted({key for row in rows for key in row})
    where = f"{path}, named by datasets.{name}"
    if not columns:
        raise InputError("the file has no usable row", where=where)
    if dataset.column is None:
        raise InputError(
            f"`datasets.{name}.column` is not set",
            where=where,
            hint=f"name the column that holds the prompt or conversation; the file has: {', '.join(columns)}",
        )
    if dataset.column not in columns:
        raise InputError(
            f"no row has a column {dataset.column!r}", where=where, hint=f"the file has: {', '.join(columns)}"
        )
    return dataset.column


def _source_row(path: Path, number: int, row: dict[str, Any], column: str) -> SourceRow | RejectedRow:
    orig_id = _orig_id(row, number)
    if isinstance(orig_id, Problem):
        return _rejected(path, number, orig_id)
    if column not in row:
        return _rejected(path, number, Problem("column_missing", f"the row has no {column!r}"))
    task = row.get("task")
    return SourceRow(
        orig_id,
        _place(path, number),
        row[column],
        task if isinstance(task, str) else None,
        row.get("tools"),
    )


def _unused(rows: list[dict[str, Any]], column: str) -> dict[str, int]:
    counts = Counter(key for row in rows for key in row)
    return {key: count for key, count in sorted(counts.items()) if key not in (column, *_KEYS)}


def _orig_id(row: dict[str, Any], number: int) -> str | Problem:
    if "id" not in row:
        return _line_id(number)
    value = row["id"]
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if isinstance(value, str) and value.strip() and value.isprintable():
        return value
    return Problem("bad_id", f"id {value!r} is neither an integer nor a non-empty string")


def _refuse_equal_ids(rows: list[SourceRow]) -> None:
    first: dict[str, SourceRow] = {}
    for row in rows:
        other = first.setdefault(row.orig_id, row)
        if other is not row:
            raise InputError(
                f"two rows have the id {row.orig_id!r}",
                where=f"{other.where} and {row.where}",
                hint="give every row its own id, or remove the `id` column to number rows by line",
            )


def _rejected(path: Path, number: int, problem: Problem) -> RejectedRow:
    return RejectedRow(_line_id(number), _place(path, number), problem)


def _line_id(number: int) -> str:
    return f"line-{number:06d}"


def _place(path: Path, number: int) -> str:
    return f"{path}:{number}"
