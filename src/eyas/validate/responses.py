"""Reading what generate wrote for one dataset: answers, failed requests, and how prompts were rendered."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path
from typing import Any

import polars as pl

from eyas import jsonl, paths
from eyas.errors import ArtifactError, EyasError
from eyas.schema import FAILED_REQUEST, RAW_RESPONSE, USAGE, Responses, check, columns_of

KEYS_LOOKED_AT = 1000
"""Lines whose keys are compared with the schema: one program writes them all."""

_HINT = "dvc repro generate"


def read_responses(path: Path) -> pl.DataFrame:
    """Answers with the columns of schema.Responses and `row`, the line itself.

    Raises:
        ArtifactError: no such file, a line that does not fit the schema, or a table that breaks it.
    """
    table = _read(path, RAW_RESPONSE).unnest("value")
    usage = [pl.col("usage").struct.field(field.name).alias(f"usage_{field.name}") for field in USAGE.fields]
    names = columns_of(Responses).names()
    table = table.with_columns(usage).select(*names, "row")
    check(Responses, table.drop("row"), str(path))
    return table


def read_failed_ids(path: Path) -> pl.Series:
    """sample_ids of errors.jsonl; none where there is no such file."""
    if not path.exists():
        return pl.Series("sample_id", [], dtype=pl.String)
    return _read(path, FAILED_REQUEST).unnest("value")["sample_id"]


def unknown_keys(path: Path) -> list[str]:
    """Keys of the first lines that the schema does not have, in dotted form; they are not used anywhere."""
    found: set[str] = set()
    for line in islice(jsonl.read(path), KEYS_LOOKED_AT):
        found |= _unknown(line.value, RAW_RESPONSE, "")
    return sorted(found)


def read_template_kwargs(path: Path) -> dict[str, Any]:
    """`chat_template_kwargs` of server_profile.json: the template arguments that the prompts were rendered with.

    Raises:
        ArtifactError: no such file, or it does not say.
    """
    try:
        kwargs = json.loads(path.read_bytes())["chat_template_kwargs"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ArtifactError(
            f"no `chat_template_kwargs` in the server profile: {error!r}", where=str(path), hint=_HINT
        ) from error
    if not isinstance(kwargs, dict):
        raise ArtifactError(
            f"`chat_template_kwargs` is {kwargs!r}, not a mapping", where=str(path), hint=_HINT
        )
    return kwargs


def errors_path(dataset: str) -> Path:
    """Where generate lists the requests that failed for good."""
    return paths.responses(dataset) / "errors.jsonl"


def _read(path: Path, dtype: pl.Struct) -> pl.DataFrame:
    """Columns `row` (the line) and `value` (the line as `dtype`)."""
    if not path.exists():
        raise ArtifactError("no such file", where=str(path), hint=_HINT)
    try:
        lines = pl.scan_lines(path, name="row").filter(pl.col("row") != "")
        return lines.with_columns(value=pl.col("row").str.json_decode(dtype)).collect()
    except pl.exceptions.PolarsError as error:
        raise _misfit(path, dtype, error) from error


def _misfit(path: Path, dtype: pl.Struct, error: Exception) -> EyasError:
    """The error of the first line that does not fit."""
    for line in jsonl.read(path):
        text = json.dumps(line.value)
        try:
            pl.Series([text]).str.json_decode(dtype)
        except pl.exceptions.PolarsError as reason:
            where = f"{path}:{line.number}"
            return ArtifactError(f"the line does not fit the schema: {reason}", where=where, hint=_HINT)
    return ArtifactError(f"the file can't be read: {error}", where=str(path), hint=_HINT)


def _unknown(value: Any, dtype: Any, prefix: str) -> set[str]:
    if isinstance(dtype, pl.List) and isinstance(value, list):
        return set().union(*(_unknown(item, dtype.inner, prefix) for item in value))
    if not isinstance(dtype, pl.Struct) or not isinstance(value, dict):
        return set()
    fields = dict(dtype.to_schema())
    here = {f"{prefix}{key}" for key in value if key not in fields}
    return here.union(
        *(_unknown(value[key], fields[key], f"{prefix}{key}.") for key in value if key in fields)
    )
