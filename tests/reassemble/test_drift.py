from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from eyas.errors import GateError
from eyas.reassemble import drift
from eyas.reassemble.drift import drift_report, measure, refuse_drift, sample
from eyas.reassemble.inputs import ValidatedTable
from eyas.reassemble.text import TextRebuilder
from eyas.target.template import load_tokenizer
from tests.families import FAMILIES
from tests.hand_made import hash_of
from tests.reassemble.golden_rows import row_of, table_of

FAMILY = FAMILIES["qwen3"]
TURN = FAMILY.turn("thinking")


@pytest.fixture(scope="module")
def rebuilder(tmp_path_factory: pytest.TempPathFactory) -> TextRebuilder:
    folder = tmp_path_factory.mktemp("families")
    return TextRebuilder(load_tokenizer(FAMILY.tokenizer_dir(folder)), FAMILY.profile(folder))


def stored(directory: Path, name: str, *rows: dict[str, Any]) -> ValidatedTable:
    path = directory / f"{name}.parquet"
    table_of(*rows).write_parquet(path)
    return ValidatedTable(name, path, {})


def answer(number: int, replaced: dict[int, list[int]] | None = None, **changes: Any) -> dict[str, Any]:
    """The golden answer, some of its ids (by place) replaced by others that may spell the same text."""
    ids = [
        token for place, old in enumerate(TURN.generated_ids) for token in (replaced or {}).get(place, [old])
    ]
    return row_of(FAMILY, TURN, token_ids=ids, sample_id=f"qwen3:{number}", **changes)


ROWS = [
    answer(0),
    answer(1, {2: [ord("I"), ord("t")]}),  # "It" as two tokens, as a target may sample it
    answer(2, {8: [10, 10]}),  # "\n\n" as two
    answer(3, {2: [277]}),  # the text does not say "Hello"
    answer(4, tool_calls=FAMILY.turn("tool_call").tool_calls),
    answer(5, content="Four.\ufffd"),
]


def test_case_C07_drift_is_measured_and_named(tmp_path: Path, rebuilder: TextRebuilder) -> None:
    table = stored(tmp_path, "a", *ROWS)
    measured = measure(table, sample([table], 100), rebuilder)
    seen = measured.select("sample_id", "outcome", "refused", "position", "server_id", "text_id").rows()
    assert seen == [
        ("qwen3:0", "same", None, None, None, None),
        ("qwen3:1", "other_length", None, 2, ord("I"), 274),
        ("qwen3:2", "other_length", None, 8, 10, 256),
        ("qwen3:3", "same_length_other_ids", None, 2, 277, 274),
        ("qwen3:4", "refused", "tool_calls", None, None, None),
        ("qwen3:5", "refused", "lossy_text", None, None, None),
    ]


def test_case_C07_shares_are_of_the_answers_whose_text_gives_ids(
    tmp_path: Path, rebuilder: TextRebuilder
) -> None:
    table = stored(tmp_path, "a", *ROWS)
    report = drift_report(measure(table, sample([table], 100), rebuilder))
    assert report["measured"] == 6
    assert report["outcomes"] == {"same": 1, "same_length_other_ids": 1, "other_length": 2, "refused": 2}
    assert (report["drifted_share"], report["undetected_share"]) == (3 / 4, 1 / 2)
    assert report["refused"] == {"lossy_text": 1, "tool_calls": 1}
    assert [example["position"] for example in report["examples"]] == [2, 8, 2]


def test_case_C07_the_threshold_is_a_parameter(tmp_path: Path, rebuilder: TextRebuilder) -> None:
    table = stored(tmp_path, "a", *ROWS)
    report = drift_report(measure(table, sample([table], 100), rebuilder))
    refuse_drift(report, text_rows=5, max_share=0.75)
    refuse_drift(report, text_rows=0, max_share=0.0)  # nothing is made of text
    with pytest.raises(
        GateError, match=r"(?s)75.0% of the 6 answers .* is 70.0%; 5 sequences .*where: qwen3:1"
    ):
        refuse_drift(report, text_rows=5, max_share=0.7)


def test_nothing_measured_is_null_and_stops_nothing(tmp_path: Path, rebuilder: TextRebuilder) -> None:
    table = stored(tmp_path, "a", answer(0, prompt_token_ids=None) | {"token_ids": None})
    report = drift_report(measure(table, sample([table], 10), rebuilder))
    assert (report["measured"], report["drifted_share"], report["undetected_share"]) == (0, None, None)
    refuse_drift(report, text_rows=1, max_share=0.0)


def test_the_sample_is_the_smallest_hashes_of_all_tables(tmp_path: Path) -> None:
    hashes = [f"{number:064x}" for number in (5, 1, 4, 2, 3)]
    rows = [answer(number, prompt_hash=prompt_hash) for number, prompt_hash in enumerate(hashes)]
    tables = [stored(tmp_path, "a", *rows[:2]), stored(tmp_path, "b", *rows[2:])]
    assert sample(tables, 3)["sample_id"].to_list() == ["qwen3:1", "qwen3:3", "qwen3:4"]
    assert sample(tables, 99).height == 5


def test_of_a_large_table_places_spread_over_it_are_looked_at(
    tmp_path: Path, rebuilder: TextRebuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drift, "ROW_GROUP", 2)
    monkeypatch.setattr(drift, "GROUPS", 3)
    rows = [answer(number, prompt_hash=hash_of(str(number))) for number in range(10, 23)]
    small, large = stored(tmp_path, "a", *rows[:6]), stored(tmp_path, "b", *rows)
    assert sample([small], 100).height == 6
    chosen = sample([large], 100)
    assert chosen["sample_id"].sort().to_list() == [f"qwen3:{number}" for number in (10, 11, 14, 15, 18, 19)]
    assert measure(large, chosen, rebuilder)["sample_id"].sort().equals(chosen["sample_id"].sort())
