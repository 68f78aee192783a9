from __future__ import annotations

from typing import Any

import pandera.polars as pa
import polars as pl
import pytest

from eyas.errors import ArtifactError
from eyas.schema import (
    LOSS_MASK,
    MESSAGES,
    TOKEN_IDS,
    Prompts,
    Quarantined,
    RejectedPrompts,
    Responses,
    Sequences,
    Validated,
    check,
    columns_of,
)
from tests.hand_made import hash_of, prompts, raw, responses, validated

SEQUENCE: dict[str, Any] = {
    "sequence_id": "talk:1",
    "dataset": "talk",
    "sample_id": "talk:1",
    "prompt_hash": hash_of("1"),
    "token_ids": [5, 6, 7, 2],
    "loss_mask": [False, False, True, True],
    "num_prompt_tokens": 2,
    "num_generated_tokens": 2,
    "truncated": False,
    "task": None,
}


def sequences(*rows: dict[str, Any]) -> pl.DataFrame:
    return pl.DataFrame(list(rows), schema=columns_of(Sequences))


def test_columns_have_the_dtypes_of_the_files() -> None:
    assert columns_of(Prompts)["messages"] == MESSAGES
    assert columns_of(Responses)["token_ids"] == TOKEN_IDS
    assert columns_of(Sequences)["loss_mask"] == LOSS_MASK
    assert columns_of(Sequences)["num_prompt_tokens"] == pl.Int32


@pytest.mark.parametrize(
    ("model", "table"),
    [
        pytest.param(Prompts, prompts([raw("a:1"), raw("a:2")]), id="prompts"),
        pytest.param(Responses, responses([raw("a:1")]).drop("row"), id="responses"),
        pytest.param(Validated, validated([raw("a:1")]), id="validated"),
        pytest.param(Sequences, sequences(SEQUENCE), id="sequences"),
        *(
            pytest.param(model, pl.DataFrame(schema=columns_of(model)), id=f"empty-{model.__name__}")
            for model in (Prompts, RejectedPrompts, Responses, Validated, Quarantined, Sequences)
        ),
    ],
)
def test_good_tables_pass(model: type[pa.DataFrameModel], table: pl.DataFrame) -> None:
    check(model, table, "a table")


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        pytest.param({"token_ids": [5, 6, 7]}, "lengths_agree", id="ids-shorter-than-counts"),
        pytest.param({"loss_mask": [False, True, True]}, "lengths_agree", id="mask-shorter"),
        pytest.param(
            {"loss_mask": [False, True, True, False]}, "mask_is_the_generated_tail", id="mask-shifted"
        ),
        pytest.param({"loss_mask": [False] * 4}, "mask_is_the_generated_tail", id="mask-of-zeros"),
        pytest.param({"loss_mask": [True] * 4}, "mask_is_the_generated_tail", id="prompt-supervised"),
        pytest.param(
            {"num_generated_tokens": 0, "num_prompt_tokens": 4},
            "greater_than_or_equal_to",
            id="nothing-generated",
        ),
        pytest.param({"prompt_hash": "abc"}, "str_matches", id="no-hash"),
        pytest.param({"token_ids": None}, "not_nullable", id="no-ids"),
    ],
)
def test_sequences_refuse(changes: dict[str, Any], rule: str) -> None:
    with pytest.raises(ArtifactError, match=rule):
        check(Sequences, sequences(SEQUENCE | changes), "sequences")


def test_sequence_ids_are_unique() -> None:
    with pytest.raises(ArtifactError, match=r"sequence_id: field_uniqueness \(2 times, for example talk:1\)"):
        check(Sequences, sequences(SEQUENCE, SEQUENCE), "sequences")


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        pytest.param({"sample_id": pl.lit("nocolon")}, "str_matches", id="id-without-dataset"),
        pytest.param({"dataset": pl.lit("other")}, "sample_id_names_its_dataset", id="id-of-another-dataset"),
        pytest.param({"extra": pl.lit(1)}, "column_in_schema", id="unknown-column"),
        pytest.param({"task": pl.lit(1)}, "dtype", id="wrong-type"),
        pytest.param(
            {"messages": pl.lit([{"role": "assistant", "content": "x"}], dtype=MESSAGES)},
            "last_turn_is_of_the_user",
            id="answered-already",
        ),
    ],
)
def test_prompts_refuse(changes: dict[str, pl.Expr], rule: str) -> None:
    with pytest.raises(ArtifactError, match=rule):
        check(Prompts, prompts([raw("a:1")]).with_columns(**changes), "prompts")


def test_all_broken_rules_are_named_at_once() -> None:
    table = sequences(SEQUENCE | {"prompt_hash": "abc", "loss_mask": [True] * 4})
    with pytest.raises(ArtifactError, match=r"str_matches.*mask_is_the_generated_tail"):
        check(Sequences, table, "sequences")


def test_validated_rows_need_an_accepted_finish_reason() -> None:
    with pytest.raises(ArtifactError, match="finish_reason: isin"):
        check(Validated, validated([raw("a:1", finish_reason="abort")]), "validated")
