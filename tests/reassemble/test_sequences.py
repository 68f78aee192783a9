from __future__ import annotations

from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eyas.answers import MISFILED_REASONING
from eyas.reassemble.params import ReassembleParams
from eyas.reassemble.sequences import candidates, chosen, index
from eyas.schema import Sequences, check
from eyas.target.spec import TargetProfile
from tests.hand_made import END, END_THINK, PROMPT_IDS, THINK, THINKING, profile, raw, validated


def params(**changes: Any) -> ReassembleParams:
    return ReassembleParams(**({"val_share": 0.25, "max_length": 100, "keep_truncated": True} | changes))


def made(*rows: dict[str, Any], target: TargetProfile | None = None, **changes: Any) -> pl.LazyFrame:
    return candidates(validated(list(rows)).lazy(), target or profile(), params(**changes))


def kept(*rows: dict[str, Any], target: TargetProfile | None = None, **changes: Any) -> pl.DataFrame:
    table = chosen(made(*rows, target=target, **changes)).collect()
    check(Sequences, table, "sequences")
    return table


def reasons(*rows: dict[str, Any], target: TargetProfile | None = None, **changes: Any) -> dict[str, str]:
    found = index(made(*rows, target=target, **changes)).filter(pl.col("reason").is_not_null())
    return dict(found.select("sequence_id", "reason").rows())


def test_prompt_ids_then_generated_ids() -> None:
    row = kept(raw("talk:1", task="sums")).row(0, named=True)
    assert row["token_ids"] == [*PROMPT_IDS, 30, 31, 32, END]
    assert row["kinds"] == [0] * 10 + [3, 3, 3, 5]
    assert (row["num_prompt_tokens"], row["num_generated_tokens"]) == (10, 4)
    assert (row["sequence_id"], row["sample_id"], row["dataset"]) == ("talk:1", "talk:1", "talk")
    assert (row["task"], row["truncated"]) == ("sums", False)
    assert (row["turn"], row["origin"], row["weight"]) == (0, "ids", 1.0)


def test_weight_is_that_of_the_dataset() -> None:
    table = chosen(candidates(validated([raw()]).lazy(), profile(), params(), 0.25)).collect()
    assert table["weight"].to_list() == [0.25]


def supervised(row: dict[str, Any]) -> list[int]:
    return [token for token, kept in zip(row["token_ids"], row["kinds"], strict=True) if kept]


def test_supervision_starts_at_the_first_generated_token_and_ends_with_the_end_of_turn() -> None:
    tokens = supervised(kept(raw()).row(0, named=True))
    assert tokens[0] == 30
    assert tokens[-1] == END


def test_a_cut_answer_has_no_end_of_turn() -> None:
    row = kept(raw(finish_reason="length", token_ids=[30, 31, 32], truncated=True)).row(0, named=True)
    assert supervised(row) == [30, 31, 32]
    assert row["kinds"][-1] != 0
    assert row["token_ids"][-1] != END
    assert row["kinds"][-3:] == [3, 3, 3]


@given(
    st.lists(st.tuples(st.lists(st.integers(0, 39), min_size=1), st.lists(st.integers(0, 39), min_size=1)))
)
def test_mask_splits_every_sequence_into_what_the_server_sent(
    parts: list[tuple[list[int], list[int]]],
) -> None:
    rows = [
        raw(f"talk:{number}", prompt_token_ids=prompt, token_ids=generated)
        for number, (prompt, generated) in enumerate(parts)
    ]
    table = kept(*rows, max_length=10**6)
    for (prompt, generated), row in zip(parts, table.iter_rows(named=True), strict=True):
        assert row["token_ids"][: len(prompt)] == prompt
        assert supervised(row) == generated
        mask = [kind > 0 for kind in row["kinds"]]
        assert mask == sorted(mask)  # one span, at the end


@pytest.mark.parametrize("ids", [None, []], ids=["null", "empty"])
@pytest.mark.parametrize("column", ["token_ids", "prompt_token_ids"])
@pytest.mark.parametrize("changes", [{}, {"too_long": "cut"}], ids=["drop", "cut"])
def test_rows_without_ids_are_refused(column: str, ids: list[int] | None, changes: dict[str, Any]) -> None:
    rows = [raw("talk:1"), raw("talk:2", **{column: ids})]
    assert reasons(*rows, **changes) == {"talk:2": "no_ids"}
    assert kept(*rows, **changes)["sample_id"].to_list() == ["talk:1"]


CUT = raw("talk:2", finish_reason="length", token_ids=[30] * 20, truncated=True)


@pytest.mark.parametrize(
    ("changes", "dropped"),
    [
        pytest.param({}, {}, id="all-kept"),
        pytest.param({"max_length": 30}, {}, id="limit-is-inclusive"),
        pytest.param({"max_length": 29}, {"talk:2": "too_long"}, id="too-long"),
        pytest.param({"keep_truncated": False}, {"talk:2": "truncated"}, id="truncated"),
        pytest.param({"keep_truncated": False, "max_length": 13}, {"talk:1": "too_long", "talk:2": "truncated"}, id="both"),
    ],
)  # fmt: skip
def test_dropped_rows_have_a_reason(changes: dict[str, Any], dropped: dict[str, str]) -> None:
    assert reasons(raw("talk:1"), CUT, **changes) == dropped
    assert set(kept(raw("talk:1"), CUT, **changes)["sample_id"]) == {"talk:1", "talk:2"} - set(dropped)


@pytest.mark.parametrize(
    ("max_length", "generated", "truncated"),
    [(14, [30, 31, 32, END], False), (13, [30, 31, 32], True), (11, [30], True)],
    ids=["fits", "loses-the-end-of-turn", "one-token-left"],
)
def test_too_long_answers_are_cut_at_the_end_only(
    max_length: int, generated: list[int], truncated: bool
) -> None:
    row = kept(raw(), too_long="cut", max_length=max_length).row(0, named=True)
    assert row["token_ids"] == [*PROMPT_IDS, *generated]
    assert row["truncated"] is truncated
    assert row["kinds"] == [0] * 10 + [5 if token == END else 3 for token in generated]
    assert len(row["token_ids"]) <= max_length


def test_a_prompt_that_leaves_no_room_is_not_cut() -> None:
    assert reasons(raw(), too_long="cut", max_length=10) == {"talk:1": "too_long"}


def test_later_turns_are_rows_of_their_own() -> None:
    table = kept(raw(), raw(turn=1), raw(turn=10))
    assert table["sequence_id"].to_list() == ["talk:1", "talk:1#1", "talk:1#10"]
    assert table["sample_id"].to_list() == ["talk:1"] * 3


THINKS = profile(think=THINKING)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        pytest.param({"token_ids": [THINK, 30, END_THINK, 31, END]}, None, id="both-markers"),
        pytest.param({"token_ids": [30, END_THINK, 31, END]}, "thinking_not_opened", id="opening-lost"),
        pytest.param({"token_ids": [END_THINK, 30, THINK, 31, END]}, "thinking_not_opened", id="swapped"),
        pytest.param({"token_ids": [THINK, 30, 31, END]}, "thinking_not_closed", id="end-lost"),
        pytest.param({"token_ids": [30, 31, END]}, "thinking_lost", id="both-lost"),
        pytest.param(
            {"token_ids": [30, 31, END], "flags": [MISFILED_REASONING]},
            None,
            id="an-answer-that-was-misfiled",
        ),
        pytest.param({"token_ids": [30, 31, END], "reasoning": " "}, None, id="no-thinking"),
        pytest.param({"token_ids": [THINK, 30, 31], "truncated": True}, None, id="cut"),
    ],
)
def test_thinking_that_can_not_be_right_is_refused(changes: dict[str, Any], reason: str | None) -> None:
    row = raw(**({"reasoning": "it"} | changes))
    assert reasons(row, target=THINKS) == ({"talk:1": reason} if reason else {})


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"val_share": 0.0}, "val_share"),
        ({"val_share": 1.0}, "val_share"),
        ({"max_length": 1}, "max_length"),
        ({"too_long": "cut", "keep_truncated": False}, "too_long"),
        ({"too_long": "trim"}, "too_long"),
        ({"source": "tokens"}, "source"),
        ({"drift_rows": -1}, "drift_rows"),
        ({"max_drift_share": 1.5}, "max_drift_share"),
        ({"max_refused_share": -0.1}, "max_refused_share"),
        ({"weights": {"talk": 0.0}}, "weights.talk"),
        ({"weights": {"talk": float("inf")}}, "weights.talk"),
    ],
)
def test_impossible_params_name_their_key(changes: dict[str, Any], key: str) -> None:
    with pytest.raises(ValueError, match=f"^{key}: "):
        params(**changes)
