"""The stage scripts prompts, validate, reassemble and vocab, run as DVC runs them, on a small made-up target."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from safetensors.numpy import load_file

from eyas.freshness import inputs_digest, read_inputs_digest
from eyas.target.template import render_prompt
from tests.hand_made import END, profile, raw
from tests.hand_made_tokenizer import write_tokenizer

ROOT = Path(__file__).resolve().parents[1]
PARAMS = """
datasets:
  talk: {source: jsonl, role: train, path: talk.jsonl, column: prompt}
  quiz: {source: jsonl, role: eval, path: quiz.jsonl, column: prompt}
prompts: {system: null, max_characters: 100}
validate:
  min_tokens: 2
  expect_reasoning: false
  allow_repeated_markers: true
  text_sample: 8
  max_quarantined_share: 0.2
  max_truncated_share: 0.5
  max_unreasoned_share: 0.0
  max_short_share: 0.0
  max_text_difference_share: 0.0
reassemble: {val_share: 0.2, max_length: 50, keep_truncated: true}
vocab: {draft_vocab_size: 8}
"""


class Repository:
    """A working directory with params, sources and a target."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.target = directory / "models/target"

    def set_up(self) -> None:
        (self.directory / "params.yaml").write_text(PARAMS)
        (self.directory / "sources").mkdir()
        self.write_source("talk", ["add " + " one" * number for number in range(20)] + ["add two", " "])
        self.write_source("quiz", ["Add  TWO", "two"])
        write_tokenizer(self.target)
        profile().write(self.directory / "models/profile.json")

    def run_all(self) -> None:
        for name in ("talk", "quiz"):
            self.succeed("prompts", name)
            self.answer(name, CHANGES, failed=("talk:7",))
            self.succeed("validate", name)
        self.succeed("reassemble")
        self.succeed("vocab")

    def write_source(self, name: str, prompts: list[str]) -> None:
        lines = [json.dumps({"id": number, "prompt": prompt}) for number, prompt in enumerate(prompts)]
        (self.directory / "sources" / f"{name}.jsonl").write_text("\n".join(lines) + "\n")

    def run(self, stage: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(ROOT / "stages" / f"{stage}.py"), *arguments]
        return subprocess.run(command, cwd=self.directory, capture_output=True, text=True, check=False)

    def succeed(self, stage: str, *arguments: str) -> str:
        finished = self.run(stage, *arguments)
        assert finished.returncode == 0, finished.stderr
        return finished.stderr

    def answer(self, name: str, changes: dict[str, dict[str, Any]], failed: tuple[str, ...] = ()) -> None:
        """Write data/responses/NAME as generate does, with these changes by sample_id."""
        folder = self.directory / "data/responses" / name
        folder.mkdir(parents=True, exist_ok=True)
        table = pl.read_parquet(self.directory / f"data/prompts/{name}.parquet")
        rows = [
            raw(
                row["sample_id"],
                messages=row["messages"],
                prompt_hash=row["prompt_hash"],
                **{
                    "prompt_token_ids": render_prompt(self.target, row["messages"]),
                    "content": "it is unused32",
                }
                | changes.get(row["sample_id"], {}),
            )
            for row in table.iter_rows(named=True)
            if row["sample_id"] not in failed
        ]
        (folder / "raw_responses.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        errors = [
            {"sample_id": sample_id, "turn": 0} for sample_id in table["sample_id"] if sample_id in failed
        ]
        (folder / "errors.jsonl").write_text("".join(json.dumps(row) + "\n" for row in errors))
        (folder / "server_profile.json").write_text('{"chat_template_kwargs": {}, "dialect": "vllm"}')

    def outputs(self) -> dict[str, bytes]:
        files = [
            path for top in ("data", "models", "reports") for path in (self.directory / top).rglob("*.*")
        ]
        return {str(path): path.read_bytes() for path in files if path.is_file()}

    def table(self, path: str) -> pl.DataFrame:
        return pl.read_parquet(self.directory / path)

    def report(self, path: str) -> Any:
        return json.loads((self.directory / "reports" / path).read_text())


CHANGES: dict[str, dict[str, Any]] = {
    "talk:3": {"finish_reason": "length", "token_ids": [30, 31, 30], "content": "it is it"},
    "talk:4": {"content": ""},
}


@pytest.fixture(scope="module")
def finished_run(tmp_path_factory: pytest.TempPathFactory) -> Repository:
    """All four stages done; tests only look at it."""
    repository = Repository(tmp_path_factory.mktemp("repository"))
    repository.set_up()
    repository.run_all()
    return repository


@pytest.fixture
def repository(finished_run: Repository, tmp_path: Path) -> Repository:
    """A copy of it that a test may change."""
    shutil.copytree(finished_run.directory, tmp_path, dirs_exist_ok=True)
    return Repository(tmp_path)


def test_prompts_are_rejected_with_reasons_and_know_their_params(finished_run: Repository) -> None:
    rejected = finished_run.table("data/prompts/rejected/talk.parquet")
    assert dict(rejected.select("sample_id", "reason").rows()) == {
        "talk:20": "overlaps_evaluation",
        "talk:21": "empty_turn",
    }
    digest = inputs_digest(finished_run.directory / "params.yaml")
    assert read_inputs_digest(finished_run.directory / "data/prompts/talk.parquet") == digest


def test_responses_are_valid_quarantined_or_failed(finished_run: Repository) -> None:
    report = finished_run.report("validation/talk.json")
    assert [report[key] for key in ("turns", "validated", "quarantined", "failed")] == [20, 18, 1, 1]
    assert report["shares"]["quarantined"] == pytest.approx(1 / 19, rel=1e-5)
    assert report["text_against_ids"] == {"rows": 8, "equal": 8, "whitespace": 0, "different": 0}
    quarantined = finished_run.table("data/quarantine/talk.parquet").row(0, named=True)
    assert (quarantined["sample_id"], quarantined["rule"]) == ("talk:4", "empty_answer")
    assert json.loads(quarantined["row"])["token_ids"] == [30, 31, 32, END]


def test_sequences_are_split_and_proven(finished_run: Repository) -> None:
    splits = {name: finished_run.table(f"data/sequences/{name}.parquet") for name in ("train", "val", "eval")}
    assert splits["train"].height + splits["val"].height == 18
    assert splits["eval"]["sample_id"].to_list() == ["quiz:0", "quiz:1"]
    assert finished_run.report("reassembly.json")["prompts_rendered_equal"] == 20


def test_vocabulary_files_are_what_engines_read(finished_run: Repository) -> None:
    maps = load_file(finished_run.directory / "models/vocab/vocab.safetensors")
    draft_ids = [int(offset) + place for place, offset in enumerate(maps["d2t"])]
    assert draft_ids == [0, 1, END, 3, 4, 30, 31, 32]
    assert maps["t2d"].nonzero()[0].tolist() == draft_ids
    description = json.loads((finished_run.directory / "models/vocab/vocab.json").read_text())
    assert (description["size"], description["coverage"]["eval"]) == (8, 1.0)


def test_a_rerun_writes_the_same_bytes(repository: Repository) -> None:
    before = repository.outputs()
    repository.run_all()
    assert repository.outputs() == before
    assert len(before) > 10


def test_a_gate_fails_the_stage_publishes_nothing_and_shows_the_rows(repository: Repository) -> None:
    repository.answer("talk", {f"talk:{number}": {"content": ""} for number in range(5)})
    (repository.directory / "data/validated/talk.parquet").unlink()
    finished = repository.run("validate", "talk")
    assert finished.returncode == 1
    assert "25.0% of the responses are quarantined" in finished.stderr
    assert not (repository.directory / "data/validated/talk.parquet").exists()
    assert repository.table("data/quarantine/talk.parquet").height == 5
    assert "empty_answer                          5  talk:0, talk:1, talk:2, ..." in finished.stderr
    assert "look at a row: eyas peek talk --sample talk:0;" in finished.stderr


def test_texts_that_belong_to_other_tokens_fail_the_stage(repository: Repository) -> None:
    repository.answer("quiz", {"quiz:1": {"content": "two two two"}})
    finished = repository.run("validate", "quiz")
    assert finished.returncode == 1
    assert "50.0% of the sampled texts differ from their tokens" in finished.stderr
    assert "eyas peek quiz --sample quiz:1" in finished.stderr


def test_a_lost_answer_stops(repository: Repository) -> None:
    repository.answer("quiz", {})
    path = repository.directory / "data/responses/quiz/raw_responses.jsonl"
    path.write_text(path.read_text().splitlines()[0] + "\n")
    finished = repository.run("validate", "quiz")
    assert finished.returncode == 1
    assert "1 turns have neither an answer nor an error (quiz:1)" in finished.stderr


@pytest.mark.parametrize(
    ("name", "message"),
    [("quiz", "no data/validated/quiz.parquet"), ("old", "data/validated/old.parquet belongs to no")],
)
def test_reassemble_reads_exactly_the_datasets_of_the_params(
    repository: Repository, name: str, message: str
) -> None:
    folder = repository.directory / "data/validated"
    if name == "quiz":
        (folder / "quiz.parquet").unlink()
    else:
        (folder / "old.parquet").write_bytes((folder / "talk.parquet").read_bytes())
    finished = repository.run("reassemble")
    assert finished.returncode == 1
    assert message in finished.stderr


def test_another_prompt_rendering_of_the_server_stops(repository: Repository) -> None:
    repository.answer("talk", {"talk:2": {"prompt_token_ids": [1, 8, 10, 22, END, 10, 1, 9, 10]}})
    repository.succeed("validate", "talk")
    before = repository.outputs()
    finished = repository.run("reassemble")
    assert finished.returncode == 1
    assert "1 of 22 prompts are rendered differently" in finished.stderr
    assert "where: talk:2" in finished.stderr
    assert repository.outputs() == before


def test_an_unknown_dataset_lists_the_known_ones(repository: Repository) -> None:
    finished = repository.run("prompts", "tlak")
    assert finished.returncode == 1
    assert "talk, quiz" in finished.stderr
