from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from eyas.datasets import DatasetParams
from eyas.errors import InputError
from eyas.prompts import gym, gym_items
from eyas.prompts.gym import read_reasoning_gym


def dataset(*tasks: str, count: int = 3, seed: int = 5) -> DatasetParams:
    return DatasetParams(source="reasoning_gym", role="train", tasks=list(tasks), count=count, seed=seed)


@pytest.fixture
def few_questions(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reasoning_gym whose only task repeats four questions."""

    def create_dataset(task: str, size: int, seed: int) -> list[dict[str, str]]:
        return [{"question": f"question {index // 2 % 4}"} for index in range(size)]

    monkeypatch.setitem(sys.modules, "reasoning_gym", SimpleNamespace(create_dataset=create_dataset))


def test_repeats_are_skipped_and_numbers_are_places_in_the_sequence(few_questions: None) -> None:
    items = gym_items.unique_items("few", count=3, seed=1)
    assert items == [{"index": 2 * place, "question": f"question {place}"} for place in range(3)]


def test_a_small_task_gives_all_it_has(few_questions: None) -> None:
    assert len(gym_items.unique_items("few", count=9, seed=1)) == 4


def test_a_larger_count_only_adds_items(few_questions: None) -> None:
    assert gym_items.unique_items("few", count=4, seed=1)[:2] == gym_items.unique_items(
        "few", count=2, seed=1
    )


def test_seeds_are_far_apart() -> None:
    seeds = [gym_items.task_seed(task, seed) for task in ("gcd", "lcm") for seed in range(200)]
    gaps = [right - left for left, right in zip(sorted(seeds), sorted(seeds)[1:], strict=False)]
    assert len(set(seeds)) == 400
    assert max(seeds) < 2**31
    assert sum(gap < 1000 for gap in gaps) < 5  # of 400 random seeds in 2**31 next to none are neighbours


def test_rows_of_the_real_package() -> None:
    rows = read_reasoning_gym("d", dataset("gcd", "bf", count=2)).rows  # bf prints while it loads
    assert [row.orig_id for row in rows] == ["gcd-0000", "gcd-0001", "bf-0000", "bf-0001"]
    assert [row.task for row in rows] == ["gcd", "gcd", "bf", "bf"]
    assert all("Greatest Common Divisor" in row.value for row in rows[:2])


def test_one_seed_gives_the_same_rows_whatever_the_hash_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    def rows(hash_seed: str) -> Any:
        monkeypatch.setenv("PYTHONHASHSEED", hash_seed)
        return read_reasoning_gym("d", dataset("ransom_note")).rows  # this task walks over a set

    assert rows("1") == rows("2")


def test_an_unknown_task_names_close_ones() -> None:
    with pytest.raises(InputError, match=r"(?s)'letter_count'.*datasets\.d\.tasks.*letter_counting"):
        read_reasoning_gym("d", dataset("gcd", "letter_count"))


def test_a_missing_package_names_the_installation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gym, "find_spec", lambda name: None)
    with pytest.raises(InputError, match="pip install reasoning-gym"):
        read_reasoning_gym("d", dataset("gcd"))
