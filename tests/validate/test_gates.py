"""Shares, gates and the report, over a hand-made dataset."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

import polars as pl
import pytest

from eyas.errors import GateError
from eyas.schema import Validated, check
from eyas.validate.comparison import Comparison
from eyas.validate.gates import check_shares, shares_of, table_of_rules
from eyas.validate.judgement import LEDGER_SCHEMA
from eyas.validate.params import ValidateParams
from eyas.validate.report import validation_report
from eyas.validate.rules import rules
from tests.hand_made import END, END_THINK, THINK, raw
from tests.validate.judging import EXPECTING, IDS, PARAMS, PLAIN, TEXT, THINKING, judged, text

ROWS = [
    raw("talk:4", content=""),
    raw("talk:1"),
    raw("talk:3", finish_reason="length", token_ids=[30, 31]),
    raw("talk:2", token_ids=[30] * 9 + [END], reasoning="because", flags=["lossy_text"]),
    raw("talk:2", turn=1, messages=[{"role": "user", "content": "question talk:2"}] * 2),
]
RULES = rules(PLAIN, PARAMS, IDS)
FAILED = pl.DataFrame({"sample_id": ["talk:9"], "turn": [0]}, schema_overrides={"turn": pl.Int32})
NONE_FAILED = FAILED[:0]


@pytest.fixture
def ledger() -> pl.DataFrame:
    from tests.hand_made import prompts

    table = prompts([*ROWS[:3], ROWS[4]]).with_columns(task=pl.lit("sums"))
    found = judged(ROWS, prompts=table)
    check(Validated, found.validated, "validated")
    assert found.validated["task"].unique().to_list() == ["sums"]
    return found.ledger


def test_every_response_is_in_the_ledger_in_order(ledger: pl.DataFrame) -> None:
    assert ledger.schema == LEDGER_SCHEMA
    assert ledger.select("sample_id", "turn", "rule").rows() == [
        ("talk:4", 0, "empty_answer"), ("talk:1", 0, None), ("talk:3", 0, None), ("talk:2", 0, None), ("talk:2", 1, None),
    ]  # fmt: skip
    assert ledger["truncated"].to_list() == [False, False, True, False, False]
    assert ledger["generated_tokens"].to_list() == [4, 4, 2, 10, 4]


def test_report_counts_what_is_there_and_says_null_for_what_is_not(ledger: pl.DataFrame) -> None:
    report = validation_report(ledger, RULES, FAILED, None, unknown=["x"])
    assert {key: report[key] for key in ("conversations", "turns", "failed", "quarantined", "validated")} == {
        "conversations": 5, "turns": 6, "failed": 1, "quarantined": 1, "validated": 4,
    }  # fmt: skip
    assert report["shares"] == {
        "failed": 1 / 6, "quarantined": 0.2, "truncated": 0.25, "unreasoned": 0.8, "short": 0.0, "text_different": None,
    }  # fmt: skip
    assert report["finish_reasons"] == {"stop": 3, "length": 1, "tool_calls": 0}
    assert report["by_turn"] == {0: 3, 1: 1}
    assert report["rules"]["empty_answer"] == report["rules_broken"]["empty_answer"] == 1
    assert sum(report["rules"].values()) == sum(report["rules_broken"].values()) == 1
    assert report["flags"]["lossy_text"] == 1
    assert sum(report["flags"].values()) == 1
    assert report["tokens"]["generated"] == {
        "total": 20, "mean": 5.0, "median": 4.0, "p95": pytest.approx(9.1), "max": 10,
    }  # fmt: skip
    assert report["tokens"]["reasoning"] == dict.fromkeys(("total", "mean", "median", "p95", "max"))
    assert (report["with_token_ids"], report["without_usage"]) == (4, 0)
    assert report["text_against_ids"] is None
    assert report["unknown_keys"] == ["x"]


def test_report_counts_every_broken_rule_but_names_the_first() -> None:
    ledger = judged([raw(content="", finish_reason="abort")]).ledger
    report = validation_report(ledger, RULES, NONE_FAILED, None, [])
    assert {name for name, count in report["rules"].items() if count} == {"finish_reason"}
    assert {name for name, count in report["rules_broken"].items() if count} == {
        "finish_reason", "empty_answer", "end_of_turn_after_cut",
    }  # fmt: skip


def test_report_of_thinking_and_of_text() -> None:
    thought = raw(reasoning="because", token_ids=[THINK, 30, 31, END_THINK, 32, END])
    report = validation_report(judged([thought], THINKING).ledger, RULES, NONE_FAILED, None, [])
    assert report["tokens"]["reasoning"]["total"] == 2
    usage = {"prompt_tokens": None, "completion_tokens": 7, "reasoning_tokens": 5}
    rows = [text(sample_id="talk:1", usage=usage, reasoning="r"), text(sample_id="talk:2", usage=None)]
    report = validation_report(judged(rows, THINKING, notes=TEXT).ledger, RULES, NONE_FAILED, None, [])
    assert (report["with_token_ids"], report["without_usage"]) == (0, 1)
    assert report["tokens"]["generated"]["total"] == 7
    assert report["tokens"]["reasoning"]["total"] == 5
    assert report["tokens"]["prompt"]["total"] is None


def test_report_of_a_dataset_without_responses_has_no_shares() -> None:
    empty = pl.DataFrame(schema=LEDGER_SCHEMA)
    report = validation_report(empty, RULES, NONE_FAILED, None, [])
    assert set(report["shares"].values()) == {None}
    assert report["by_turn"] == {}


def test_shares_at_their_limits_pass(ledger: pl.DataFrame) -> None:
    limits = replace(PARAMS, max_quarantined_share=0.2, max_truncated_share=0.25, max_short_share=0.0)
    check_shares("talk", ledger, None, limits)


def comparison(different: int) -> Comparison:
    return Comparison(rows=10, equal=10 - different, whitespace=0, different=different, examples=["talk:2 b"])


@pytest.mark.parametrize(
    ("limit", "message"),
    [
        pytest.param(
            {"max_quarantined_share": 0.19},
            r"20.0% of the responses are quarantined, `validate.max_quarantined_share` is 19.0%",
            id="quarantined",
        ),
        pytest.param(
            {"max_truncated_share": 0.24},
            r"25.0% of the valid responses are cut, `validate.max_truncated_share` is 24.0%",
            id="cut",
        ),
        pytest.param(
            {"max_text_difference_share": 0.2},
            r"30.0% of the sampled texts differ from their tokens, `validate.max_text_difference_share`",
            id="texts",
        ),
        pytest.param(
            {"max_unreasoned_share": 0.7, "expect_reasoning": True},
            r"80.0% of the responses have no reasoning, `validate.max_unreasoned_share` is 70.0%",
            id="no-reasoning",
        ),
        pytest.param(
            {"max_quarantined_share": 0.0, "max_truncated_share": 0.0},
            r"20.0% of the responses.*; 25.0% of the valid responses",
            id="all-are-named",
        ),
    ],
)
def test_a_share_above_its_limit_stops(ledger: pl.DataFrame, limit: dict[str, Any], message: str) -> None:
    with pytest.raises(GateError, match=message):
        check_shares("talk", ledger, comparison(3), replace(PARAMS, **limit))


def test_without_expecting_reasoning_its_share_stops_nothing(ledger: pl.DataFrame) -> None:
    check_shares("talk", ledger, comparison(0), replace(PARAMS, max_unreasoned_share=0.0))


def test_too_many_short_answers_stop() -> None:
    rows = [raw("talk:1", token_ids=[END]), raw("talk:2"), raw("talk:3", token_ids=[END], content="")]
    with pytest.raises(GateError, match=r"66.7% of the responses are too short, `validate.max_short_share`"):
        check_shares("talk", judged(rows).ledger, None, replace(PARAMS, max_short_share=0.5))


def test_a_gate_shows_rules_counts_examples_and_how_to_look() -> None:
    rows = [raw(f"talk:{number}", content="") for number in range(4)]
    rows += [raw("talk:8", token_ids=[END]), raw("talk:9")]
    ledger = judged(rows).ledger
    with pytest.raises(GateError) as caught:
        check_shares("talk", ledger, None, replace(PARAMS, max_quarantined_share=0.5))
    message = str(caught.value)
    assert "83.3% of the responses are quarantined" in message
    assert [line.split() for line in message.splitlines()[1:3]] == [
        ["empty_answer", "4", "talk:0,", "talk:1,", "talk:2,", "..."],
        ["too_short", "1", "talk:8"],
    ]
    assert "eyas peek talk --sample talk:0" in message
    assert table_of_rules(judged([raw()]).ledger) == ""


def test_cut_answers_and_differing_texts_are_shown_too(ledger: pl.DataFrame) -> None:
    valid = ledger.drop_nulls("truncated").filter(pl.col("rule").is_null())
    with pytest.raises(GateError, match="eyas peek talk --sample talk:3"):
        check_shares("talk", valid, None, replace(PARAMS, max_truncated_share=0.0))
    with pytest.raises(GateError, match="eyas peek talk --sample 'talk:2 b'"):
        check_shares("talk", valid, comparison(5), replace(PARAMS, max_text_difference_share=0.1))


def test_nothing_left_stops_even_without_limits() -> None:
    with pytest.raises(GateError, match="no response is left"):
        check_shares("talk", judged([raw(content="")]).ledger, None, PARAMS)
    with pytest.raises(GateError, match="no response is left"):
        check_shares("talk", pl.DataFrame(schema=LEDGER_SCHEMA), None, PARAMS)


def test_shares_of_text_and_thinking() -> None:
    rows = [raw("talk:1", reasoning=None), raw("talk:2", token_ids=[THINK, *[30] * 9, END_THINK, 31, END])]
    assert shares_of(judged(rows, THINKING, EXPECTING).ledger, None).unreasoned == 0.5


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("max_quarantined_share", 1.5),
        ("max_truncated_share", -0.1),
        ("max_unreasoned_share", 2.0),
        ("max_short_share", -1.0),
        ("max_text_difference_share", 1.01),
        ("min_tokens", 0),
        ("text_sample", -1),
    ],
)
def test_impossible_params_name_their_key(key: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"{key}: {value}"):
        ValidateParams(**(asdict(PARAMS) | {key: value}))
