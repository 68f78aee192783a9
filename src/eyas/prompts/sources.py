"""Which reader belongs to which `source` of a dataset."""

from __future__ import annotations

from collections.abc import Callable

from eyas.datasets import DatasetParams
from eyas.prompts.gym import read_reasoning_gym
from eyas.prompts.jsonl import read_jsonl
from eyas.prompts.packaged import read_human_eval, read_mt_bench
from eyas.prompts.rows import SourceRows

READERS: dict[str, Callable[[str, DatasetParams], SourceRows]] = {
    "reasoning_gym": read_reasoning_gym,
    "jsonl": read_jsonl,
    "mt_bench": read_mt_bench,
    "human_eval": read_human_eval,
}


def read_source(name: str, dataset: DatasetParams) -> SourceRows:
    """The raw rows of a dataset in the source's own order.

    Raises:
        InputError: the source can't be read.
    """
    return READERS[dataset.source](name, dataset)
