from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest

from eyas.errors import GateError
from eyas.reassemble.params import ReassembleParams
from eyas.reassemble.publish import check_files, write_sequences
from eyas.reassemble.report import (
    kind_shares,
    length_histogram,
    outcome_rows,
    reassembly_report,
    refuse_many,
    total_counts,
    write_plots,
)
from eyas.reassemble.sequences import candidates
from tests.hand_made import END, END_THINK, PROMPT_IDS, THINK, THINKING, hash_of, profile, raw, validated

PARAMS = ReassembleParams(val_share=0.3, max_length=20, keep_truncated=True)
THINKS = profile(think=THINKING)
TRAIN = [
    raw("talk:1", token_ids=[THINK, 30, 30, END_THINK, 31, END]),
    raw("talk:2"),
    raw("talk:3", token_ids=[30] * 20, finish_reason="length", truncated=True),
    raw("talk:4", token_ids=None),
    raw("talk:5", token_ids=[30, 30], finish_reason="length", truncated=True),
]
QUIZ = [raw("quiz:1", prompt_token_ids=[*PROMPT_IDS[:3], 33, *PROMPT_IDS[4:]])]


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The index, and tokens by kind."""
    directory = tmp_path_factory.mktemp("sequences")
    sequences = {
        name: candidates(validated(rows).lazy(), THINKS, PARAMS)
        for name, rows in (("quiz", QUIZ), ("talk", TRAIN))
    }
    roles = {"talk": "train", "quiz": "eval"}
    found = write_sequences(directory, sequences, roles, PARAMS.val_share, hash_of)
    return found, check_files(directory, found, THINKS)


@pytest.fixture
def index(published: tuple[pl.DataFrame, pl.DataFrame]) -> pl.DataFrame:
    return published[0]


@pytest.fixture
def kinds(published: tuple[pl.DataFrame, pl.DataFrame]) -> pl.DataFrame:
    return published[1]


def test_report_counts_rows_tokens_and_reasons(index: pl.DataFrame, kinds: pl.DataFrame) -> None:
    report = reassembly_report(index, kinds, 5, {"measured": 0})
    assert (report["answers"], report["rows"]) == (6, 4)
    assert (report["exact_by_server_ids"], report["rebuilt_from_text"], report["exact_share"]) == (4, 0, 1.0)
    assert report["prompts_rendered_equal"] == 5
    assert report["refused"] == {"no_ids": 1}
    assert report["dropped"] == {"truncated": 0, "too_long": 1, "duplicate": 0}
    assert report["tokens"] == {
        "prompt": 40, "think_marker": 2, "reasoning": 2, "answer": 9, "tool_call": 0, "end_of_turn": 3
    }  # fmt: skip
    assert report["supervised_share"] == 16 / 56
    splits = report["splits"]
    assert splits["train"]["rows"] + splits["val"]["rows"] == 3
    assert splits["eval"] == {
        "rows": 1,
        "by_dataset": {"quiz": 1},
        "prompt_tokens": 10,
        "generated_tokens": 4,
        "supervised_share": 4 / 14,
        "truncated_share": 0.0,
        "length": {"p50": 14, "p90": 14, "p99": 14, "max": 14},
    }


def test_report_of_nothing_is_null(index: pl.DataFrame, kinds: pl.DataFrame) -> None:
    report = reassembly_report(index.clear(), kinds.clear(), 0, {})
    assert (report["rows"], report["exact_share"], report["supervised_share"]) == (0, None, None)
    assert report["splits"]["train"]["truncated_share"] is None
    assert report["splits"]["train"]["length"]["max"] is None


def test_kinds_are_counted_by_dataset_over_several_pieces(kinds: pl.DataFrame) -> None:
    by_name = {name: kinds.filter(dataset=name)["tokens"].to_list() for name in ("talk", "quiz")}
    assert by_name == {"talk": [30, 2, 2, 6, 0, 2], "quiz": [10, 0, 0, 3, 0, 1]}
    twice = total_counts([kinds, kinds])
    assert twice["tokens"].to_list() == (kinds["tokens"] * 2).to_list()
    shares = kind_shares(kinds).filter(dataset="quiz")["share"].to_list()
    assert shares == [10 / 14, 0, 0, 3 / 14, 0, 1 / 14]


def test_outcomes_of_every_answer(index: pl.DataFrame) -> None:
    assert outcome_rows(index).rows() == [
        ("quiz", "exact_by_ids", 1), ("talk", "exact_by_ids", 3), ("talk", "no_ids", 1), ("talk", "too_long", 1)
    ]  # fmt: skip
    text = index.with_columns(origin=pl.lit("text"))
    assert ("talk", "from_text", 3) in outcome_rows(text).rows()


def test_histogram_holds_every_sequence_in_equal_bins(index: pl.DataFrame) -> None:
    long = index.with_columns(num_prompt_tokens=pl.lit(1000, dtype=pl.Int32))
    histogram = length_histogram(long)
    assert histogram["rows"].sum() == 4
    assert set(histogram.filter(dataset="talk")["length"].diff().drop_nulls()) == {
        32
    }  # 1006 tokens in 32 bins
    assert length_histogram(index.clear()).is_empty()


def test_plots_of_an_empty_run_have_their_columns(
    index: pl.DataFrame, kinds: pl.DataFrame, tmp_path: Path
) -> None:
    write_plots(tmp_path, index.clear(), kinds.clear())
    assert (tmp_path / "lengths.tsv").read_text() == "dataset\tlength\trows\n"
    assert (tmp_path / "kinds.tsv").read_text() == "dataset\tkind\ttokens\tshare\n"
    assert (tmp_path / "rows.tsv").read_text() == "dataset\toutcome\trows\n"


@pytest.mark.parametrize(("limit", "stops"), [(0.16, True), (0.17, False)])
def test_gate_on_refused_answers_does_not_count_what_params_drop(
    index: pl.DataFrame, limit: float, stops: bool
) -> None:
    params: Any = ReassembleParams(0.3, 20, keep_truncated=True, max_refused_share=limit)
    if not stops:
        refuse_many(index, params)
        return
    with pytest.raises(
        GateError, match=r"(?s)16.7% of the answers .*no_ids +1  talk:4.*`reassemble.source: text`"
    ):
        refuse_many(index, params)


def test_gate_shows_how_to_look_at_a_refused_answer(index: pl.DataFrame) -> None:
    params: Any = ReassembleParams(0.3, 20, keep_truncated=True, max_refused_share=0.0)
    lost = index.with_columns(reason=pl.lit("thinking_lost"))
    with pytest.raises(GateError, match=r"(?s)100.0% .*thinking_lost +6 .*eyas peek quiz --sample quiz:1"):
        refuse_many(lost, params)
