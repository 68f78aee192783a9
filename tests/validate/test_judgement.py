from __future__ import annotations

import polars as pl
import pytest

from eyas.errors import GateError
from eyas.schema import Quarantined, Validated, check
from eyas.validate.judgement import Judgement, check_set, check_shares, judge
from eyas.validate.params import ValidateParams
from eyas.validate.report import validation_report
from eyas.validate.rules import rules
from tests.hand_made import END, profile, prompts, raw, responses

TARGET = profile()


def params(quarantined: float = 1.0, truncated: float = 1.0) -> ValidateParams:
    return ValidateParams(
        max_quarantined_share=quarantined, max_truncated_share=truncated, min_tokens=2, expect_reasoning=False
    )


RULES = rules(TARGET, params(), default_template=True)
ROWS = [
    raw("talk:4", content=""),
    raw("talk:1"),
    raw("talk:3", finish_reason="length", token_ids=[30, 31]),
    raw("talk:2", token_ids=[30] * 9 + [END], reasoning="because"),
]


@pytest.fixture
def judgement() -> Judgement:
    return judge(responses(ROWS), prompts(ROWS).with_columns(task=pl.lit("sums")), RULES, TARGET)


def series(*ids: str) -> pl.Series:
    return pl.Series("sample_id", ids, dtype=pl.String)


def test_every_response_is_in_one_table_sorted_and_true_to_its_schema(judgement: Judgement) -> None:
    check(Validated, judgement.validated, "validated")
    check(Quarantined, judgement.quarantined, "quarantined")
    assert judgement.validated["sample_id"].to_list() == ["talk:1", "talk:2", "talk:3"]
    assert judgement.validated["truncated"].to_list() == [False, False, True]
    assert judgement.validated["task"].unique().to_list() == ["sums"]
    assert judgement.quarantined.rows() == [("talk:4", "empty_answer", "no text", "talk:4")]


def test_report_counts_what_is_there_and_says_null_for_what_is_not(judgement: Judgement) -> None:
    report = validation_report(judgement, RULES, failed=1, unknown=["x"])
    assert {key: report[key] for key in ("prompts", "failed", "quarantined", "validated")} == {
        "prompts": 5, "failed": 1, "quarantined": 1, "validated": 3,
    }  # fmt: skip
    assert report["shares"] == {"failed": 0.2, "quarantined": 0.25, "truncated": 1 / 3, "reasoning": 1 / 3}
    assert report["finish_reasons"] == {"stop": 2, "length": 1, "tool_calls": 0}
    assert report["rules"]["empty_answer"] == 1
    assert sum(report["rules"].values()) == 1
    assert report["tokens"]["generated"] == {
        "total": 16, "mean": 16 / 3, "median": 4.0, "p95": pytest.approx(9.4), "max": 10,
    }  # fmt: skip
    assert report["tokens"]["reasoning"] == dict.fromkeys(("total", "mean", "median", "p95", "max"))


def test_report_of_a_dataset_without_responses_has_no_shares() -> None:
    empty = judge(responses([]), prompts([]), RULES, TARGET)
    assert set(validation_report(empty, RULES, 0, [])["shares"].values()) == {None}


def test_set_rule_passes_when_each_prompt_has_one_outcome() -> None:
    check_set(series("a:1", "a:2", "a:3"), series("a:3", "a:1"), series("a:2"))


@pytest.mark.parametrize(
    ("answered", "failed", "message"),
    [
        pytest.param(["a:1"], [], r"1 samples have neither an answer nor an error \(a:2\)", id="lost"),
        pytest.param(
            ["a:1", "a:2", "b:9"], [], r"1 samples are not in the prompt table \(b:9\)", id="foreign"
        ),
        pytest.param(["a:1", "a:2"], ["a:2"], r"1 samples have more than one outcome \(a:2\)", id="both"),
        pytest.param(["a:1", "a:2", "a:2"], [], r"1 samples have more than one outcome \(a:2\)", id="twice"),
    ],
)
def test_case_H02_lost_foreign_and_repeated_samples_stop(
    answered: list[str], failed: list[str], message: str
) -> None:
    with pytest.raises(GateError, match=message):
        check_set(series("a:1", "a:2"), series(*answered), series(*failed))


def test_shares_at_their_limits_pass(judgement: Judgement) -> None:
    check_shares(judgement, params(quarantined=0.25, truncated=0.34), "q.parquet")


def test_too_many_quarantined_rows_show_rules_counts_and_examples() -> None:
    rows = [raw(f"talk:{number}", content="") for number in range(4)]
    rows += [raw("talk:8", token_ids=[END]), raw("talk:9")]
    judged = judge(responses(rows), prompts(rows), RULES, TARGET)
    with pytest.raises(GateError) as caught:
        check_shares(judged, params(quarantined=0.5), "q.parquet")
    message = str(caught.value)
    assert "83.3% of the responses are quarantined, `validate.max_quarantined_share` is 50.0%" in message
    lines = [line.split() for line in message.splitlines()[1:3]]
    assert lines == [
        ["empty_answer", "4", "talk:0,", "talk:1,", "talk:2,", "..."],
        ["too_short", "1", "talk:8"],
    ]
    assert "q.parquet" in message


def test_too_many_cut_answers_stop(judgement: Judgement) -> None:
    with pytest.raises(
        GateError, match=r"33.3% of the responses are cut, `validate.max_truncated_share` is 30.0%"
    ):
        check_shares(judgement, params(truncated=0.3), "q.parquet")


def test_nothing_left_stops_even_without_limits() -> None:
    rows = [raw(content="")]
    with pytest.raises(GateError, match="no response is left"):
        check_shares(judge(responses(rows), prompts(rows), RULES, TARGET), params(), "q.parquet")


@pytest.mark.parametrize(
    ("key", "value"), [("max_quarantined_share", 1.5), ("max_truncated_share", -0.1), ("min_tokens", 0)]
)
def test_impossible_params_name_their_key(key: str, value: float) -> None:
    good = {
        "max_quarantined_share": 0.0,
        "max_truncated_share": 0.0,
        "min_tokens": 1,
        "expect_reasoning": False,
    }
    with pytest.raises(ValueError, match=key):
        ValidateParams(**(good | {key: value}))  # type: ignore[arg-type]
