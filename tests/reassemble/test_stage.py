"""The stage script, run as DVC runs it, on validated tables written here."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from eyas.identity import prompt_hash
from eyas.tables import TEMPLATE_KWARGS, write_table
from eyas.target.template import render_prompt
from tests.hand_made import END, profile, raw, validated
from tests.hand_made_tokenizer import write_tokenizer

ROOT = Path(__file__).resolve().parents[2]
PARAMS = """
datasets:
  talk: {source: jsonl, role: train, path: talk.jsonl, column: prompt}
  talk-more: {source: jsonl, role: train, path: more.jsonl, column: prompt}
  quiz: {source: jsonl, role: eval, path: quiz.jsonl, column: prompt}
reassemble: {val_share: 0.2, max_length: 20, keep_truncated: true, weights: {talk: 0.5}}
"""
QUESTIONS = ["add one", "add two", "add one two", "two add", "one add one", "two two", "add add", "one one"]


class Repository:
    """A working directory with params, a target and validated tables."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.target = directory / "models/target"

    def set_up(self) -> None:
        self.set_params(PARAMS)
        write_tokenizer(self.target)
        profile().write(self.directory / "models/profile.json")
        self.write(
            "talk", [self.row(f"talk:{number}", question) for number, question in enumerate(QUESTIONS)]
        )
        self.write(
            "talk-more", [self.row("talk-more:1", "it is"), self.row("talk-more:1", "it is one", turn=1)]
        )
        self.write("quiz", [self.row("quiz:0", "is it")])

    def set_params(self, text: str) -> None:
        (self.directory / "params.yaml").write_text(text)

    def row(self, sample_id: str, question: str, **changes: Any) -> dict[str, Any]:
        messages = [{"role": "user", "content": question}]
        values = {
            "messages": messages,
            "prompt_hash": prompt_hash(messages),
            "prompt_token_ids": render_prompt(self.target, messages),
            "content": "it is it",
            "token_ids": [30, 31, 30, END],
        }
        return raw(sample_id, **(values | changes))

    def write(self, name: str, rows: list[dict[str, Any]]) -> None:
        table = validated(rows).sort("sample_id", "turn")
        write_table(self.directory / f"data/validated/{name}.parquet", table, {TEMPLATE_KWARGS: "{}"})

    def run(self) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(ROOT / "stages/reassemble.py")]
        return subprocess.run(command, cwd=self.directory, capture_output=True, text=True, check=False)

    def succeed(self) -> str:
        finished = self.run()
        assert finished.returncode == 0, finished.stderr
        return finished.stderr

    def fail(self) -> str:
        finished = self.run()
        assert finished.returncode == 1, finished.stderr
        return finished.stderr

    def split(self, name: str) -> pl.DataFrame:
        return pl.read_parquet(self.directory / f"data/sequences/{name}.parquet")

    @property
    def report(self) -> Any:
        return json.loads((self.directory / "reports/reassembly.json").read_text())

    def plot(self, name: str) -> pl.DataFrame:
        return pl.read_csv(self.directory / f"reports/reassembly/{name}.tsv", separator="\t")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Repository:
    """A finished run; tests only look at it."""
    repository = Repository(tmp_path_factory.mktemp("repository"))
    repository.set_up()
    repository.succeed()
    return repository


@pytest.fixture
def repository(finished: Repository, tmp_path: Path) -> Repository:
    """A copy that a test may change."""
    shutil.copytree(finished.directory, tmp_path, dirs_exist_ok=True)
    return Repository(tmp_path)


def test_every_answer_is_a_sequence_of_its_own_ids(finished: Repository) -> None:
    everything = pl.concat([finished.split(name) for name in ("train", "val", "eval")])
    assert everything.height == 11
    for row in everything.iter_rows(named=True):
        assert row["token_ids"][row["num_prompt_tokens"] :] == [30, 31, 30, END]
        assert row["kinds"][row["num_prompt_tokens"] :] == [3, 3, 3, 5]
        assert (row["origin"], row["weight"]) == ("ids", 0.5 if row["dataset"] == "talk" else 1.0)
    assert finished.split("eval")["sequence_id"].to_list() == ["quiz:0"]


def test_files_are_in_the_order_of_sample_id_and_turn(finished: Repository) -> None:
    both = pl.concat([finished.split("train"), finished.split("val")])
    assert {"talk-more:1", "talk-more:1#1"} <= set(both["sequence_id"])
    for name in ("train", "val"):
        table = finished.split(name)
        assert table["sample_id"].to_list() == sorted(table["sample_id"])


def test_the_same_turn_of_two_conversations_is_one_sequence(repository: Repository) -> None:
    more = [repository.row(f"talk-more:{number}", "it is") for number in (1, 2)]
    repository.write("talk-more", more)
    repository.succeed()
    both = pl.concat([repository.split("train"), repository.split("val")])
    assert both.filter(dataset="talk-more")["sequence_id"].to_list() == ["talk-more:1"]
    assert repository.report["dropped"]["duplicate"] == 1
    assert (repository.report["answers"], repository.report["rows"]) == (11, 10)


def test_report_is_the_proof(finished: Repository) -> None:
    report = finished.report
    assert (report["answers"], report["rows"], report["exact_by_server_ids"]) == (11, 11, 11)
    assert (report["rebuilt_from_text"], report["exact_share"]) == (0, 1.0)
    assert report["prompts_rendered_equal"] == 11
    assert (report["refused"], report["dropped"]) == ({}, {"truncated": 0, "too_long": 0, "duplicate": 0})
    assert report["tokens"]["end_of_turn"] == 11
    assert report["tokens"]["answer"] == 33
    assert report["text_drift"]["outcomes"] == {
        "same": 11,
        "same_length_other_ids": 0,
        "other_length": 0,
        "refused": 0,
    }
    assert report["text_drift"]["drifted_share"] == 0.0


def test_plots_are_small_tables(finished: Repository) -> None:
    assert finished.plot("rows").filter(dataset="talk").rows() == [("talk", "exact_by_ids", 8)]
    kinds = finished.plot("kinds").filter(dataset="quiz")
    assert kinds["kind"].to_list() == [
        "prompt",
        "think_marker",
        "reasoning",
        "answer",
        "tool_call",
        "end_of_turn",
    ]
    assert kinds["tokens"].to_list() == [10, 0, 0, 3, 0, 1]
    lengths = finished.plot("lengths")
    assert lengths["rows"].sum() == 11
    assert lengths.filter(dataset="quiz", length=14)["rows"].to_list() == [1]


def test_a_rerun_writes_the_same_bytes_and_leaves_nothing_else(repository: Repository) -> None:
    def outputs() -> dict[str, bytes]:
        files = [path for top in ("data", "reports") for path in (repository.directory / top).rglob("*")]
        return {str(path): path.read_bytes() for path in files if path.is_file()}

    before = outputs()
    repository.succeed()
    assert outputs() == before


def test_rows_without_ids_are_refused_and_stop_the_stage_with_what_to_do(repository: Repository) -> None:
    rows = [
        repository.row(f"talk:{number}", question, token_ids=None, prompt_token_ids=None)
        for number, question in enumerate(QUESTIONS)
    ]
    repository.write("talk", rows)
    stderr = repository.fail()
    assert "72.7% of the answers can't become sequences" in stderr
    assert "no_ids" in stderr
    assert "reassemble.source: text" in stderr


TEXT = PARAMS.replace("weights:", "source: text, weights:")


def test_text_is_used_by_parameter_and_measured(repository: Repository) -> None:
    expected = {name: repository.split(name) for name in ("train", "val")}
    rows = [
        repository.row(f"talk:{number}", question)
        | {"token_ids": None, "prompt_token_ids": None}  # the server counted what it generated
        for number, question in enumerate(QUESTIONS)
    ]
    repository.write("talk", rows)
    repository.set_params(TEXT)
    repository.succeed()
    for name, table in expected.items():
        assert repository.split(name).drop("origin").equals(table.drop("origin"))
    assert (repository.report["exact_by_server_ids"], repository.report["rebuilt_from_text"]) == (3, 8)
    assert repository.report["text_drift"]["measured"] == 3


@pytest.mark.parametrize("params", [PARAMS, TEXT], ids=["ids", "text"])
def test_a_dataset_without_answers(repository: Repository, params: str) -> None:
    repository.set_params(params)
    repository.write("quiz", [])
    repository.succeed()
    assert repository.split("eval").is_empty()
    assert repository.report["rows"] == 10
    assert repository.report["splits"]["eval"]["truncated_share"] is None


def test_drift_of_the_measured_answers_stops_the_text_path(repository: Repository) -> None:
    rows = [repository.row(f"talk:{number}", question) for number, question in enumerate(QUESTIONS)]
    rows[0] |= {"token_ids": None, "prompt_token_ids": None}
    rows[1] |= {"token_ids": [30, 31, 22, END]}  # the text says `it`
    repository.write("talk", rows)
    repository.set_params(TEXT)
    before = repository.split("train")
    stderr = repository.fail()
    assert "10.0% of the 10 answers" in stderr
    assert "generated token 2, server 22, text 30" in stderr
    assert "talk:1" in stderr
    assert repository.split("train").equals(before)
    repository.set_params(TEXT.replace("weights:", "max_drift_share: 0.2, weights:"))
    repository.succeed()
    assert repository.report["text_drift"]["outcomes"]["same_length_other_ids"] == 1


def test_another_rendering_of_the_server_stops(repository: Repository) -> None:
    repository.write(
        "quiz", [repository.row("quiz:0", "is it", prompt_token_ids=[1, 8, 10, 22, END, 10, 1, 9, 10])]
    )
    assert "prompts are rendered differently by the server" in repository.fail()


def test_a_weight_for_no_dataset_stops(repository: Repository) -> None:
    repository.set_params(PARAMS.replace("{talk: 0.5}", "{talks: 0.5}"))
    assert "`reassemble.weights.talks`: there is no such dataset" in repository.fail()


def test_a_table_of_another_schema_stops(repository: Repository) -> None:
    path = repository.directory / "data/validated/quiz.parquet"
    write_table(path, pl.read_parquet(path).drop("task"), {TEMPLATE_KWARGS: "{}"})
    assert "not a Validated table: task differ" in repository.fail()
