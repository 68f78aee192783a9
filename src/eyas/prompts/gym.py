"""Source `reasoning_gym`: seeded reasoning tasks of the package of that name (open-thought/reasoning-gym)."""

from __future__ import annotations

import difflib
import json
import os
import subprocess
import sys
from importlib.util import find_spec
from typing import Any

from eyas.datasets import DatasetParams
from eyas.errors import InputError
from eyas.prompts import gym_items
from eyas.prompts.rows import SourceRow, SourceRows

PIP_INSTALL = "pip install reasoning-gym"


def read_reasoning_gym(name: str, dataset: DatasetParams) -> SourceRows:
    """`dataset.count` different questions of each task, or all that a small task has.

    The same tasks, count and seed always give the same questions under the same version of reasoning-gym.

    Raises:
        InputError: the package is not installed, a task does not exist, or a task fails.
    """
    if find_spec("reasoning_gym") is None:
        raise InputError("source `reasoning_gym` needs a package", where=f"datasets.{name}", hint=PIP_INSTALL)
    made = _make({"tasks": dataset.tasks, "count": dataset.count, "seed": dataset.seed}, name)
    if "unknown" in made:
        raise _unknown_task(name, made["unknown"][0], made["known"])
    rows = [
        SourceRow(f"{task}-{item['index']:04d}", f"{task} item {item['index']}", item["question"], task)
        for task, items in made["items"].items()
        for item in items
    ]
    return SourceRows(rows, [])


def _make(request: dict[str, Any], name: str) -> dict[str, Any]:
    finished = subprocess.run(
        # -P: the directory of the program must not stand before the installed packages
        [sys.executable, "-P", gym_items.__file__],
        input=json.dumps(request),
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONHASHSEED": "0"},
    )
    if finished.returncode != 0:
        last_line = (finished.stderr.strip().splitlines() or ["no message"])[-1]
        raise InputError(f"reasoning-gym failed: {last_line}", where=f"datasets.{name}.tasks")
    made: dict[str, Any] = json.loads(finished.stdout)
    return made


def _unknown_task(name: str, task: str, known: list[str]) -> InputError:
    close = difflib.get_close_matches(task, known, n=4, cutoff=0.4)
    hint = f"close names: {', '.join(close)}" if close else f"known tasks: {', '.join(known)}"
    return InputError(f"reasoning-gym has no task {task!r}", where=f"datasets.{name}.tasks", hint=hint)
