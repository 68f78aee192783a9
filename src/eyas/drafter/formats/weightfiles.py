"""Which files of a checkpoint folder hold its weights. Free of torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from eyas.errors import InputError

KINDS = ("safetensors", "bin")
"""Endings of weight files; the engines too prefer the first."""


def check_folder(directory: Path) -> None:
    """Raises InputError if there is no such folder."""
    if not directory.is_dir():
        raise InputError(
            "there is no such folder",
            where=str(directory),
            hint="give the folder of a drafter, with its config.json; download it first if it lies on a hub",
        )


def weight_files(directory: Path) -> list[Path]:
    """The weight files of a folder, in name order: those of an index, or the only one.

    Raises:
        InputError: there is none, an indexed one is missing, or there are several without an index.
    """
    check_folder(directory)
    for kind in KINDS:
        index = _index(directory, kind)
        if index is not None:
            names = sorted(set(_weight_map(index).values()))
            for name in names:
                if Path(name).name != name or not (directory / name).is_file():
                    raise InputError(
                        f"the index names a file {name!r} that is not in the folder", where=str(index)
                    )
            return [directory / name for name in names]
        found = sorted(directory.glob(f"*.{kind}"))
        if len(found) > 1:
            raise InputError(
                f"several weight files and no index: {', '.join(path.name for path in found)}",
                where=str(directory),
                hint="leave one file in the folder, or add its *.index.json",
            )
        if found:
            return found
    raise InputError(
        "no weights here: neither *.safetensors nor *.bin",
        where=str(directory),
        hint="download the whole repository; a large file may be a pointer of git lfs only",
    )


def _index(directory: Path, kind: str) -> Path | None:
    found = sorted(directory.glob(f"*.{kind}.index.json"))
    return found[0] if found else None


def _weight_map(index: Path) -> dict[str, str]:
    names = read_json(index).get("weight_map")
    if not isinstance(names, dict) or not all(isinstance(name, str) for name in names.values()):
        raise InputError("the index has no `weight_map` of tensor and file names", where=str(index))
    return names


def check_index(directory: Path, names: set[str]) -> None:
    """Compare the tensors that were found in the files with those that the index names.

    Raises:
        InputError: one is missing.
    """
    for kind in KINDS:
        index = _index(directory, kind)
        if index is None:
            continue
        if missing := sorted(_weight_map(index).keys() - names):
            raise InputError(f"tensor `{missing[0]}` of the index is in none of its files", where=str(index))
        return


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object.

    Raises:
        InputError: no such file, or something else in it.
    """
    try:
        values = json.loads(path.read_bytes())
    except FileNotFoundError as error:
        raise InputError(f"there is no {path.name} here", where=str(path.parent)) from error
    except ValueError as error:
        raise InputError(f"not JSON: {error}", where=str(path)) from error
    if not isinstance(values, dict):
        raise InputError("not a JSON object", where=str(path))
    return values
