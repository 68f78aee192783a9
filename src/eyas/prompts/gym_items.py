"""Makes reasoning-gym questions; runs as a program of its own, with a fixed hash seed.

A few tasks iterate over sets, so their items change with Python's hash seed, which only a new process can fix.
The process also keeps what some tasks print while they load away from the stage's output.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sys
import warnings
from typing import Any

from eyas.identity import prompt_hash

MAX_TRIES_PER_ITEM = 5
"""A task with so many repeats that this factor does not reach `count` has too small a domain and gives fewer."""


def unique_items(task: str, count: int, seed: int) -> list[dict[str, Any]]:
    """The first `count` different questions of a task, as {"index", "question"}; fewer if it has no more.

    `index` is the item's place in the task's own endless sequence, so that a larger count only adds items.
    """
    import reasoning_gym  # type: ignore[import-untyped]

    limit = count * MAX_TRIES_PER_ITEM
    items = reasoning_gym.create_dataset(task, size=limit, seed=task_seed(task, seed))
    seen: set[str] = set()
    unique: list[dict[str, Any]] = []
    for index in range(limit):
        question = str(items[index]["question"])
        key = prompt_hash([{"role": "user", "content": question}])
        if key not in seen:
            seen.add(key)
            unique.append({"index": index, "question": question})
        if len(unique) == count:
            break
    return unique


def task_seed(task: str, seed: int) -> int:
    """A seed of 31 bits for one task.

    reasoning-gym makes item i from `seed + i`, so neighbouring seeds would give nearly the same items: seed 2
    repeats all of seed 1 but its first item. Hashing sets the sequences of different seeds apart.
    """
    return int.from_bytes(hashlib.sha256(f"{seed}:{task}".encode()).digest()[:4]) >> 1


def make(tasks: list[str], count: int, seed: int) -> dict[str, Any]:
    """All questions, or the unknown tasks among `tasks` with the names of all that exist."""
    from reasoning_gym.factory import DATASETS  # type: ignore[import-untyped]

    unknown = [task for task in tasks if task not in DATASETS]
    if unknown:
        return {"unknown": unknown, "known": sorted(DATASETS)}
    return {"items": {task: unique_items(task, count, seed) for task in tasks}}


def main() -> None:
    """Read {"tasks", "count", "seed"} as JSON from stdin and print the result as JSON to stdout."""
    warnings.simplefilter("ignore")
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):  # noqa: PTH123
        result = make(**json.load(sys.stdin))
    json.dump(result, sys.stdout)


if __name__ == "__main__":
    main()
