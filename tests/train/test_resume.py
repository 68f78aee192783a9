"""A run that ends at any point and is started again comes to the same bits."""

from __future__ import annotations

import dataclasses
import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch

from eyas.errors import ArtifactError, JournalInUse
from eyas.published import forget_published, is_published
from eyas.train import fit as fit_module
from eyas.train.course import Course
from eyas.train.curves import METRICS, rewind
from eyas.train.data import DrafterData
from eyas.train.fit import FitInputs, FitResult, fit
from eyas.train.journal import TrainJournal
from eyas.train.loop import RunLoop
from eyas.train.module import DrafterModule
from eyas.train.record import Record, Validation, Window
from eyas.train.state import read_state, write_tensors

from .example import COMPUTE, PARAMS, train
from .test_fit import assert_same_bits

EACH_STEP = dataclasses.replace(COMPUTE, checkpoint_every_s=0.0)
EVERYTHING = dataclasses.replace(
    PARAMS,
    epochs=3,
    optimizer="muon",
    lr=5e-3,
    batch_tokens=120,
    weight_decay=0.01,
    ema=0.9,
    early_stopping=3,
    val_every_steps=3,
)


class Ended(BaseException):
    """Instead of a kill."""


@pytest.fixture(scope="module")
def undisturbed(inputs: FitInputs, tmp_path_factory: pytest.TempPathFactory) -> FitResult:
    return train(inputs, EVERYTHING, tmp_path_factory.mktemp("undisturbed"))


def end_at(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, calls: int) -> None:
    """Let a method end the run instead of doing its work, at one of its calls."""
    method, count = getattr(owner, name), 0

    def ending(self: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal count
        count += 1
        if count == calls:
            raise Ended
        return method(self, *args, **kwargs)

    monkeypatch.setattr(owner, name, ending)


@pytest.mark.parametrize(
    ("name", "calls"),
    [("_step", 1), ("_step", 2), ("_step", 5), ("validation_step", 1), ("validation_step", 6)],
)
def test_ended_in_a_step_or_a_validation(
    inputs: FitInputs,
    undisturbed: FitResult,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    calls: int,
) -> None:
    with monkeypatch.context() as patch:
        end_at(patch, DrafterModule, name, calls)
        with pytest.raises(Ended):
            train(inputs, EVERYTHING, tmp_path, EACH_STEP)
    result = train(inputs, EVERYTHING, tmp_path, EACH_STEP)
    assert result.record.resumed == (0 if (name, calls) in (("_step", 1), ("validation_step", 1)) else 1)
    assert_same_bits(undisturbed, result)


def test_ended_before_each_save(
    inputs: FitInputs, undisturbed: FitResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every run gets one save further; curves and best weights are then ahead of the state."""
    ends = 0
    while True:
        with monkeypatch.context() as patch:
            end_at(patch, RunLoop, "_save", 2)
            try:
                result = train(inputs, EVERYTHING, tmp_path, EACH_STEP)
            except Ended:
                ends += 1
                continue
        break
    assert ends >= undisturbed.summary["steps"] - 1
    assert_same_bits(undisturbed, result)


@pytest.mark.parametrize(
    ("change", "pass_tokens", "name", "calls"),
    [
        ({"precision": "bf16-mixed"}, None, "_step", 5),
        ({"precision": "bf16-mixed", "ema": 0.0, "optimizer": "adamw"}, None, "validation_step", 5),
        ({}, 30, "_pass", 12),
        ({"freeze_lm_head": True, "publish": "last"}, 30, "_pass", 9),
    ],
    ids=["bf16", "bf16-validation", "between-passes", "frozen-head"],
)
def test_every_way_of_computing_goes_on_to_the_same_bits(
    inputs: FitInputs,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    change: dict[str, Any],
    pass_tokens: int | None,
    name: str,
    calls: int,
) -> None:
    params = dataclasses.replace(EVERYTHING, epochs=2, **change)
    compute = dataclasses.replace(EACH_STEP, pass_tokens=pass_tokens)
    whole = train(inputs, params, tmp_path / "whole", compute)
    with monkeypatch.context() as patch:
        end_at(patch, DrafterModule, name, calls)
        with pytest.raises(Ended):
            train(inputs, params, tmp_path / "ended", compute)
    result = train(inputs, params, tmp_path / "ended", compute)
    assert result.record.resumed == 1
    assert_same_bits(whole, result)


def test_ended_while_the_best_weights_are_written(
    inputs: FitInputs, undisturbed: FitResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their file is ahead of the state, which still names the one before; a torn one has another name."""

    def torn(path: Path, tensors: Any, metadata: Any = None) -> None:
        path.with_name(f"{path.name}.0.tmp").write_bytes(b"half")
        raise Ended

    for failing in (torn, None):
        with monkeypatch.context() as patch:
            patch.setattr("eyas.train.journal.write_tensors", failing or write_tensors)
            if failing is None:  # it is whole, but the state that names it is not written
                end_at(patch, TrainJournal, "save", 4)
            with pytest.raises(Ended):
                train(inputs, EVERYTHING, tmp_path, EACH_STEP)
    result = train(inputs, EVERYTHING, tmp_path, EACH_STEP)
    assert_same_bits(undisturbed, result)
    best = [path.name for path in result.journal.directory.glob("best-*")]
    assert best == [f"best-{result.summary['best_step']}.safetensors"]
    assert not list(result.journal.directory.glob("*.tmp"))


def test_ended_between_training_and_publishing(
    inputs: FitInputs, undisturbed: FitResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(inputs, EVERYTHING, tmp_path)
    monkeypatch.setattr(DrafterModule, "training_step", None)  # nothing is left to train
    assert_same_bits(undisturbed, train(inputs, EVERYTHING, tmp_path))


def test_other_params_do_not_meet_the_state(
    inputs: FitInputs, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "eyas.train")
    params = dataclasses.replace(EVERYTHING, epochs=1)
    first = train(inputs, params, tmp_path)
    assert "unfinished" not in caplog.text
    other = train(inputs, dataclasses.replace(params, lr=1e-3), tmp_path)
    assert "1 unfinished trainings with other params or data" in caplog.text
    assert other.journal.directory != first.journal.directory
    assert other.record.resumed == 0


def test_only_one_process_trains_the_same(inputs: FitInputs, tmp_path: Path) -> None:
    result = train(inputs, dataclasses.replace(EVERYTHING, epochs=1), tmp_path)
    result.journal.open()
    with pytest.raises(JournalInUse):
        fit(inputs, dataclasses.replace(EVERYTHING, epochs=1), COMPUTE, tmp_path)
    result.journal.close()


def test_until_dvc_has_the_drafter_the_journal_keeps_it(
    inputs: FitInputs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DVC deletes an output that it has not yet taken in before it runs the stage again."""
    monkeypatch.setattr("eyas.published.paths.journal", lambda stage: tmp_path)
    params = dataclasses.replace(EVERYTHING, epochs=1)
    result = train(inputs, params, tmp_path)
    result.journal.finish()
    monkeypatch.setattr(RunLoop, "on_train_batch_end", None)  # nothing is trained again
    again = train(inputs, params, tmp_path)
    assert_same_bits(again, result)
    assert not is_published(again.journal.directory), "open again"
    again.journal.finish()
    forget_published("train")
    assert len(list(tmp_path.iterdir())) == 1
    monkeypatch.setenv("DVC_STAGE", "export")
    forget_published("train")
    assert list(tmp_path.iterdir()) == []


def test_other_code_does_not_go_on_with_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fit_module, "PACKAGE", tmp_path)
    for name in (
        "drafter/loss.py",
        "train/view.py",
        "gemm.py",
        "shards.py",
        "states.py",
        "storage.py",
        "target/model.py",
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("a")
    before = fit_module._code_digest()
    (tmp_path / "train/view.py").write_text("b")
    assert fit_module._code_digest() == before
    (tmp_path / "drafter/loss.py").write_text("b")
    assert fit_module._code_digest() != before


def test_a_damaged_state_says_so(tmp_path: Path) -> None:
    path = tmp_path / "state.safetensors"
    path.write_bytes(b"\x08\x00\x00\x00\x00\x00\x00\x00 nothing")
    with pytest.raises(ArtifactError, match="can't be read") as error:
        read_state(path)
    assert str(tmp_path) in str(error.value.hint)


def test_a_record_survives_json() -> None:
    found = Validation(3, 1, {"acceptance_length": 1 / 3})
    record = Record(
        step=3, untrained=found, validations=[found, found], window=Window(1, 0.1, [0.2, 0.7], 3e-8)
    )
    assert Record.from_json(json.loads(json.dumps(record.to_json()))) == record


def test_rewinding_drops_later_and_torn_rows(tmp_path: Path) -> None:
    metrics = tmp_path / METRICS / "train"
    metrics.mkdir(parents=True)
    (tmp_path / "metrics.json").write_text('{"st')
    (metrics / "loss.tsv").write_text("step\tloss\n1\t3.0\n2\t2.0\n3\t1.0\n4\t0.")
    (metrics / "late.tsv").write_text("step\tlate\n3\t1.0\n")
    (metrics / "torn.tsv").write_text("step\tto")
    rewind(tmp_path, 2)
    assert (metrics / "loss.tsv").read_text() == "step\tloss\n1\t3.0\n2\t2.0\n"
    assert sorted(path.name for path in tmp_path.rglob("*.*")) == ["loss.tsv"]


def test_the_state_says_where_the_data_go_on(inputs: FitInputs) -> None:
    """The rest of a stretch is what an undisturbed run would do in it."""
    data = DrafterData(inputs.train, inputs.val, inputs.vocab, EVERYTHING)
    course = Course(data.train.sizes, EVERYTHING)
    stretch = course.stretches[1]
    from eyas.train.data import Steps

    def ids(offset: int) -> list[tuple[int, tuple[str, ...]]]:
        return [
            (work.number, tuple(name for batch in work.batches for name in batch.sequence_ids))
            for work in Steps(data, stretch, offset)
        ]

    everything = ids(0)
    assert [number for number, _ in everything] == list(range(stretch.first, stretch.first + len(stretch)))
    assert ids(1) == everything[1:]
    assert torch.get_num_threads() == 1
