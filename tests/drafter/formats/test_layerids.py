from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from eyas.drafter.formats.findings import Findings
from eyas.drafter.formats.layerids import layers_to_set, read_layer_ids
from tests.export.conftest import PROFILE, replaced

CAPTURED = PROFILE.aux_layer_ids  # [2, 4, 5]
IDS = "eagle_aux_hidden_state_layer_ids"


def read(top: Any = None, nested: Any = None, captured: list[int] = CAPTURED) -> tuple[list[int], Findings]:
    found = Findings(Path("drafter"))
    config = {IDS: top} if top is not None else {}
    if nested is not None:
        config["eagle_config"] = {IDS: nested}
    return read_layer_ids(config, replaced(PROFILE, aux_layer_ids=captured), found), found


def test_a_list_at_the_top_counts_as_vllm_does() -> None:
    ids, found = read([1, 3, 6])
    assert (ids, found.assumptions, found.problems) == ([1, 3, 6], [], [])


def test_both_lists_may_say_the_same_in_two_countings() -> None:
    ids, found = read([2, 4, 5], [1, 3, 4])
    assert (ids, found.assumptions, found.problems) == ([2, 4, 5], [], [])


def test_the_same_list_twice_is_two_sets_of_layers() -> None:
    ids, found = read([2, 4, 5], [2, 4, 5])
    assert (ids, found.problems) == ([2, 4, 5], [])
    assert "makes SGLang take the layers after these" in found.assumptions[0]


@pytest.mark.parametrize(
    ("nested", "said"), [([1, 3, 4], "outputs of layers"), ([2, 4, 5], "counts as target.aux")]
)
def test_the_captured_layers_decide_about_a_nested_list(nested: list[int], said: str) -> None:
    ids, found = read(nested=nested)
    assert (ids, found.problems) == (CAPTURED, [])
    assert said in found.assumptions[0]
    assert len(found.assumptions) == 1


def test_a_nested_list_of_other_layers_is_refused_with_both_values_to_set() -> None:
    problems = read(nested=[1, 2, 6])[1].problems
    assert len(problems) == 1
    assert "set target.aux_layer_ids to [2, 3, 7] if it counts outputs of layers" in problems[0]
    assert "to [1, 2, 6] if it counts as vLLM does" in problems[0]


def test_no_list_means_the_engines_default() -> None:
    ids, found = read(captured=[1, 2, 3])
    assert ids == [2, 4, 5]  # of 8 layers
    assert found.assumptions == ["the aux layers are [2, 4, 5], the engines' default: the config names none"]


@pytest.mark.parametrize("wrong", [[], [2, 2, 4], [4, 2], ["2"], "2,4,5", [True], [-1, 2]])
def test_lists_that_are_none(wrong: Any) -> None:
    assert read(wrong)[1].problems


def test_lists_that_agree_in_no_counting() -> None:
    assert "different layers in every counting" in read([2, 4, 5], [0, 3, 4])[1].problems[0]


def test_a_list_that_is_off_by_one_may_count_outputs() -> None:
    assert layers_to_set([1, 3, 6], CAPTURED) == "set target.aux_layer_ids to [1, 3, 6] and run again"
    hint = layers_to_set([1, 3, 4], CAPTURED)
    assert "if its list counts outputs of layers" in hint
    assert "they are the layers [2, 4, 5]" in hint
