"""The whole pipeline under DVC, with a real vLLM server, at tiny sizes."""

from __future__ import annotations

import csv
import io
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from .project import TINY, Project, interrupt, stages_run

pytestmark = [pytest.mark.pipeline, pytest.mark.timeout(1500)]

DATASETS = list(TINY["datasets"])
AFTER_GENERATE = [
    *(f"generate@{name}" for name in DATASETS),
    *(f"validate@{name}" for name in DATASETS),
    "reassemble", "vocab", "extract", "train", "export", "evaluate", "engine", "report",
]  # fmt: skip
FROM_TRAIN = ["train", "export", "evaluate", "engine", "report"]
TIMINGS = {
    "reports/speed.json",
    "reports/train/speed.json",
    "reports/report.html",
    "reports/overview/speedup.tsv",
}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def reproduced(tmp_path_factory: pytest.TempPathFactory, home: Path) -> Project:
    """A project after its first `dvc repro`, with the result committed."""
    project = Project.create(tmp_path_factory.mktemp("project") / "eyas", home)
    output = project.dvc("repro")
    assert stages_run(output) == ["target", *(f"prompts@{name}" for name in DATASETS), *AFTER_GENERATE]
    project.commit("first run")
    return project


@pytest.fixture
def project(reproduced: Project) -> Iterator[Project]:
    """The reproduced project; params and outputs are put back afterwards."""
    yield reproduced
    reproduced.restore()
    assert reproduced.processes() == []


def hashes(project: Project) -> dict[str, str]:
    """Path of every output -> its hash in dvc.lock."""
    lock = YAML(typ="safe").load(project.path / "dvc.lock")
    return {out["path"]: out["md5"] for stage in lock["stages"].values() for out in stage.get("outs", [])}


def test_a_run_starts_one_server_for_all_datasets_and_leaves_no_process(project: Project) -> None:
    logs = sorted(path.name for path in (project.path / "data/.journal/logs").iterdir())
    assert len([name for name in logs if name.startswith("generate-")]) == 1
    assert project.processes() == []


def test_a_run_proves_the_drafter_in_the_engine(project: Project) -> None:
    engine = json.loads((project.path / "reports/engine.json").read_text())
    answers = engine["answers"]["with_drafter_as_without"]
    assert answers["identical"] == answers["answers"] >= 6
    assert engine["overall"]["acceptance"]["length"] >= 1
    extraction = json.loads((project.path / "reports/extraction.json").read_text())
    shares = [
        d["agreement"] for split in ("train", "val", "eval") for d in extraction[split]["datasets"].values()
    ]
    assert shares
    assert set(shares) == {1.0}


def test_a_second_repro_does_nothing(project: Project) -> None:
    assert stages_run(project.dvc("repro")) == []
    assert project.git("status", "--porcelain") == ""


def test_more_prompts_are_more_prompts(project: Project) -> None:
    """DVC's run cache knows the earlier prompts: it must not take them for those of another count."""
    name = "heldout"
    before = hashes(project)[f"data/prompts/{name}.parquet"]
    project.edit(f"datasets.{name}.count", 3)
    assert stages_run(project.dvc("repro", "--single-item", f"prompts@{name}")) == [f"prompts@{name}"]
    assert hashes(project)[f"data/prompts/{name}.parquet"] != before


def test_another_concurrency_reruns_nothing(project: Project) -> None:
    project.edit("server.concurrency", 3)
    assert stages_run(project.dvc("repro")) == []


def test_another_temperature_reruns_from_generate(project: Project) -> None:
    project.edit("generate.temperature", 0.7)
    expected = AFTER_GENERATE[: AFTER_GENERATE.index("vocab") + 1]
    assert stages_run(project.dvc("repro", "vocab")) == expected


def test_experiments_rerun_from_train_and_show_their_acceptance_lengths(project: Project) -> None:
    for lr in ("0.0007", "0.0003"):
        output = project.dvc("exp", "run", "--name", f"lr-{lr[2:]}", "--set-param", f"train.lr={lr}")
        assert stages_run(output) == FROM_TRAIN
    rows = list(csv.DictReader(io.StringIO(project.dvc("exp", "show", "--csv"))))
    shown = {row["Experiment"]: row for row in rows if row["Experiment"].startswith("lr-")}
    assert {row["train.lr"] for row in shown.values()} == {"0.0007", "0.0003"}
    column = "reports/acceptance.json:overall.acceptance.length"
    (length_column,) = [name for name in rows[0] if name in (column, "overall.acceptance.length")] or [column]
    for row in shown.values():
        assert 1 <= float(row[length_column]) <= 4


def test_a_fresh_clone_reproduces_every_byte_but_the_timings(project: Project, tmp_path: Path) -> None:
    clone = project.clone(tmp_path / "clone")
    assert stages_run(clone.dvc("repro", "--force"))[0] == "target"
    before, after = hashes(project), hashes(clone)
    assert {path for path in before if before[path] != after[path]} <= TIMINGS
    assert clone.processes() == []


def test_pushed_data_is_all_that_a_clone_needs(project: Project, tmp_path: Path) -> None:
    project.dvc("remote", "add", "--default", "--force", "store", str(tmp_path / "store"))
    project.commit("remote")
    project.dvc("push")
    clone = project.clone(tmp_path / "clone")
    clone.dvc("pull")
    assert stages_run(clone.dvc("repro")) == []
    assert clone.git("status", "--porcelain") == ""


def test_ctrl_c_keeps_the_answers_and_records_nothing(project: Project) -> None:
    project.edit("generate.max_tokens", 22)
    old = {entry["key"] for entry in project.journal_entries()}

    def landed() -> list[dict[str, Any]]:
        return [entry for entry in project.journal_entries() if entry["key"] not in old]

    process = project.start_dvc("repro", "generate")
    deadline = time.monotonic() + 300
    while not landed():
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.05)
    output = interrupt(process)
    assert process.returncode != 0, output
    assert project.wait_for_processes_to_end() == []
    assert "max_tokens: 22" not in (project.path / "dvc.lock").read_text()
    kept = {entry["key"]: entry["seconds"] for entry in landed()}
    project.dvc("repro", "generate")
    responses = [path / "raw_responses.jsonl" for path in project.path.glob("data/responses/*")]
    rows = sum(path.read_bytes().count(b"\n") for path in responses)
    final = {entry["key"]: entry["seconds"] for entry in landed() if "error" not in entry}
    assert len(final) == rows
    assert kept.items() <= final.items(), "an answer that had arrived was asked again"


def test_a_failing_stage_says_what_to_do_and_leaves_nothing(project: Project) -> None:
    project.edit("validate.max_truncated_share", 0.01)
    output = project.dvc("repro", code=255)
    assert "truncated" in output
    assert "Traceback" not in output
    assert project.processes() == []
    assert "max_truncated_share: 0.01" not in (project.path / "dvc.lock").read_text()


def test_an_unknown_key_is_named(project: Project) -> None:
    project.edit("train.learning_rate", 0.1)
    output = project.dvc("repro", code=255)
    assert "train.learning_rate" in output
    assert "Traceback" not in output
