from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pandera.polars as pa
import polars as pl
import pytest

from eyas.errors import ArtifactError
from eyas.schema import (
    MESSAGES,
    TOKEN_IDS,
    TOKEN_KINDS,
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
    "turn": 0,
    "prompt_hash": hash_of("1"),
    "token_ids": [5, 6, 7, 2],
    "kinds": [0, 0, 3, 5],
    "weight": 1.0,
    "origin": "ids",
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
    assert columns_of(Sequences)["kinds"] == TOKEN_KINDS
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
        pytest.param({"kinds": [0, 3, 5, 0]}, "kind_0_is_the_prompt", id="kinds-shifted"),
        pytest.param({"kinds": [0] * 4}, "kind_0_is_the_prompt", id="nothing-supervised"),
        pytest.param(
            {"num_generated_tokens": 0, "num_prompt_tokens": 4},
            "greater_than_or_equal_to",
            id="nothing-generated",
        ),
        pytest.param({"kinds": [0, 3, 5]}, "lengths_agree", id="kinds-shorter"),
        pytest.param({"kinds": [0, 2, 3, 5]}, "kind_0_is_the_prompt", id="prompt-of-another-kind"),
        pytest.param({"kinds": [0, 0, 0, 5]}, "kind_0_is_the_prompt", id="generated-as-prompt"),
        pytest.param({"kinds": [0, 0, 3, 6]}, "kind_0_is_the_prompt", id="unknown-kind"),
        pytest.param({"weight": -0.5}, "greater_than_or_equal_to", id="negative-weight"),
        pytest.param({"origin": "guess"}, "isin", id="unknown-origin"),
        pytest.param({"turn": 1}, "sequence_id_names_sample_and_turn", id="later-turn-under-the-first-id"),
        pytest.param(
            {"sequence_id": "talk:1#0"}, "sequence_id_names_sample_and_turn", id="first-turn-numbered"
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


def test_turns_of_a_sample_are_sequences_of_their_own() -> None:
    later = SEQUENCE | {"sequence_id": "talk:1#2", "turn": 2}
    check(Sequences, sequences(SEQUENCE, later), "sequences")


@pytest.mark.parametrize(
    ("model", "table"),
    [
        pytest.param(Responses, lambda *rows: responses(list(rows)).drop("row"), id="responses"),
        pytest.param(Validated, lambda *rows: validated(list(rows)), id="validated"),
        pytest.param(
            Quarantined,
            lambda *rows: pl.DataFrame(
                [
                    {
                        "sample_id": row["sample_id"],
                        "turn": row["turn"],
                        "rule": "r",
                        "value": "v",
                        "rules": ["r"],
                        "row": "{}",
                    }
                    for row in rows
                ],
                schema=columns_of(Quarantined),
            ),
            id="quarantined",
        ),
    ],
)
def test_a_sample_has_one_row_per_turn(
    model: type[pa.DataFrameModel], table: Callable[..., pl.DataFrame]
) -> None:
    check(model, table(raw("a:1"), raw("a:1", turn=1), raw("a:2")), "a table")
    with pytest.raises(ArtifactError, match="sample_id"):
        check(model, table(raw("a:1", turn=1), raw("a:1", turn=1)), "a table")


def test_ids_of_prompt_and_answer_come_together() -> None:
    check(Validated, validated([raw("a:1", prompt_token_ids=None, token_ids=None)]), "text only")
    for name in ("prompt_token_ids", "token_ids"):
        with pytest.raises(ArtifactError, match="ids_of_prompt_and_answer_come_together"):
            check(Validated, validated([raw("a:1", **{name: None})]), "half")


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        pytest.param({"sample_id": pl.lit("nocolon")}, "str_matches", id="id-without-dataset"),
        pytest.param({"dataset": pl.lit("other")}, "sample_id_names_its_dataset", id="id-of-another-dataset"),
        pytest.param({"extra": pl.lit(1)}, "column_in_schema", id="unknown-column"),
        pytest.param({"task": pl.lit(1)}, "dtype", id="wrong-type"),
        pytest.param(
            {"messages": pl.lit([{"role": "assistant", "content": "x"}], dtype=MESSAGES)},
            "last_turn_asks",
            id="answered-already",
        ),
    ],
)
def test_prompts_refuse(changes: dict[str, pl.Expr], rule: str) -> None:
    with pytest.raises(ArtifactError, match=rule):
        check(Prompts, prompts([raw("a:1")]).with_columns(**changes), "prompts")


def test_all_broken_rules_are_named_at_once() -> None:
    table = sequences(SEQUENCE | {"prompt_hash": "abc", "kinds": [3] * 4})
    with pytest.raises(ArtifactError, match=r"str_matches.*kind_0_is_the_prompt"):
        check(Sequences, table, "sequences")


def test_validated_rows_need_an_accepted_finish_reason() -> None:
    with pytest.raises(ArtifactError, match="finish_reason: isin"):
        check(Validated, validated([raw("a:1", finish_reason="abort")]), "validated")
