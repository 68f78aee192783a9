"""One pass over a file: nothing lost between batches, order, whole lines in quarantine, errors that come through."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from eyas.errors import ArtifactError, GateError
from eyas.schema import Quarantined, Validated, check, columns_of
from eyas.validate import passage, responses
from eyas.validate.passage import Passage, in_order
from eyas.validate.rules import rules
from eyas.validate.turns import asked_of, check_set, to_generate
from tests.hand_made import prompts, raw
from tests.validate.judging import IDS, PARAMS, PLAIN


def passage_over(path: Path, rows: list[dict[str, Any]], sample: int = 0) -> Passage:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return Passage(path, asked_of(prompts(rows)), rules(PLAIN, PARAMS, IDS), PLAIN, sample)


ROWS = [
    raw(
        f"talk:{number:02}",
        reasoning=None if number % 3 else "because",
        content="" if number % 5 == 4 else "yes",
    )
    for number in range(20)
]
"""Every fifth answer is blank; some of these have reasoning."""
BAD = [row["sample_id"] for row in ROWS if not row["content"] and not row["reasoning"]]


@pytest.mark.parametrize("batch_bytes", [1, 3000, 1 << 20])
def test_every_response_is_in_one_table_sorted_and_true_to_its_schema(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, batch_bytes: int
) -> None:
    monkeypatch.setattr(responses, "BATCH_BYTES", batch_bytes)
    monkeypatch.setattr(passage, "LINES", 2)
    found = passage_over(tmp_path / "r.jsonl", ROWS)
    found.write_validated(tmp_path / "v.parquet", {"note": "kept"})
    found.write_quarantined(tmp_path / "q.parquet")
    validated, quarantined = (pl.read_parquet(tmp_path / f"{name}.parquet") for name in "vq")
    check(Validated, validated, "validated")
    check(Quarantined, quarantined, "quarantined")
    assert quarantined["sample_id"].to_list() == BAD
    assert validated["sample_id"].to_list() == sorted({row["sample_id"] for row in ROWS} - set(BAD))
    kept = {row["sample_id"]: row for row in ROWS}
    assert [json.loads(line) for line in quarantined["row"]] == [kept[name] for name in BAD]
    assert set(quarantined.select("rule", "value").rows()) == {("empty_answer", "no text")}
    assert quarantined["rules"].to_list() == [["empty_answer"]] * len(BAD)
    assert found.ledger["sample_id"].to_list() == [row["sample_id"] for row in ROWS]
    assert pl.read_parquet_metadata(tmp_path / "v.parquet")["note"] == "kept"


@pytest.mark.parametrize("lines", [1, 1024])
def test_a_file_in_another_order_is_sorted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: int
) -> None:
    monkeypatch.setattr(passage, "LINES", lines)
    turns = [
        raw("talk:1", turn=turn, messages=[{"role": "user", "content": "q"}] * (turn + 1))
        for turn in (2, 10, 1)
    ]
    rows = [raw("talk:2"), *turns, raw("talk:0", content=""), raw("talk:00", content="")]
    found = passage_over(tmp_path / "r.jsonl", rows)
    full = turns[0] | {"messages": [{"role": "user", "content": "q"}] * 11}
    found.asked = asked_of(prompts([rows[0], full, *rows[4:]]))
    found.write_validated(tmp_path / "v.parquet", {"note": "kept"})
    found.write_quarantined(tmp_path / "q.parquet")
    keys = [pl.read_parquet(tmp_path / f"{name}.parquet").select("sample_id", "turn").rows() for name in "vq"]
    assert keys == [
        [("talk:1", 1), ("talk:1", 2), ("talk:1", 10), ("talk:2", 0)],
        [("talk:0", 0), ("talk:00", 0)],
    ]
    assert pl.read_parquet_metadata(tmp_path / "v.parquet")["note"] == "kept"


def test_no_responses_make_empty_tables(tmp_path: Path) -> None:
    found = passage_over(tmp_path / "r.jsonl", [])
    found.write_validated(tmp_path / "v.parquet", {})
    found.write_quarantined(tmp_path / "q.parquet")
    assert pl.read_parquet(tmp_path / "v.parquet").schema == columns_of(Validated)
    assert pl.read_parquet(tmp_path / "q.parquet").schema == columns_of(Quarantined)
    assert found.sample is None


def test_repeated_rows_in_another_order_are_left_to_the_set_rule(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(responses, "BATCH_BYTES", 1)
    found = passage_over(tmp_path / "r.jsonl", [raw("talk:2"), raw("talk:1")])
    with (tmp_path / "r.jsonl").open("a") as file:
        file.write(json.dumps(raw("talk:2")) + "\n")
    found.write_validated(tmp_path / "v.parquet", {})
    assert found.ledger["sample_id"].to_list() == ["talk:2", "talk:1", "talk:2"]
    with pytest.raises(GateError, match="more than one outcome"):
        check_set(to_generate(found.asked), found.ledger, to_generate(found.asked)[:0])


def test_a_line_that_does_not_fit_stops_the_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(responses, "BATCH_BYTES", 2000)
    found = passage_over(tmp_path / "r.jsonl", [*ROWS, raw("talk:99")])
    lines = (tmp_path / "r.jsonl").read_text().splitlines()
    (tmp_path / "r.jsonl").write_text("\n".join([*lines[:10], '{"sample_id": 3', *lines[10:]]))
    with pytest.raises(Exception, match=r"r\.jsonl:11"):
        found.write_validated(tmp_path / "v.parquet", {})


def test_a_missing_file_stops_the_pass(tmp_path: Path) -> None:
    found = passage_over(tmp_path / "r.jsonl", [])
    (tmp_path / "r.jsonl").unlink()
    with pytest.raises(ArtifactError, match="no such file"):
        found.write_validated(tmp_path / "v.parquet", {})


@pytest.mark.parametrize("batch_bytes", [1, 1 << 20])
def test_the_sample_does_not_depend_on_the_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, batch_bytes: int
) -> None:
    monkeypatch.setattr(responses, "BATCH_BYTES", batch_bytes)
    found = passage_over(tmp_path / "r.jsonl", ROWS, sample=5)
    found.write_validated(tmp_path / "v.parquet", {})
    good = [row for row in ROWS if row["sample_id"] not in BAD]
    expected = sorted(good, key=lambda row: str(row["prompt_hash"]))[:5]
    assert found.sample is not None
    assert found.sample["sample_id"].to_list() == [row["sample_id"] for row in expected]


def test_work_in_threads_keeps_its_order_and_its_bounds() -> None:
    ahead: list[int] = []
    running: set[int] = set()
    most = 0
    lock = threading.Lock()

    def work(item: int) -> int:
        nonlocal most
        with lock:
            running.add(item)
            most = max(most, len(running))
        time.sleep(0.02 if item % 2 else 0.001)
        with lock:
            running.discard(item)
        return item * item

    def items() -> Any:
        for item in range(12):
            ahead.append(item)
            yield item

    results = in_order(work, items(), 2)
    assert next(results) == 0
    assert len(ahead) == 3
    assert list(results) == [item * item for item in range(1, 12)]
    assert most == 2


def test_an_error_in_a_thread_comes_through() -> None:
    def work(item: int) -> int:
        if item == 2:
            raise ArtifactError("the third")
        return item

    results = in_order(work, range(9), 2)
    assert [next(results), next(results)] == [0, 1]
    with pytest.raises(ArtifactError, match="the third"):
        next(results)
