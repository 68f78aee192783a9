"""Training end to end on the stores of a tiny target."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
import torch

from eyas.compute import ComputeParams
from eyas.drafter.chains import draft_chain_hits
from eyas.errors import ConfigError, GateError
from eyas.train.acceptance import AcceptanceSums
from eyas.train.curves import METRICS
from eyas.train.fit import FitInputs, FitResult
from eyas.train.journal import TrainJournal
from eyas.train.module import DrafterModule
from eyas.train.record import Record
from eyas.train.report import write_validations
from eyas.train.state import Trained

from .example import COMPUTE, PARAMS, train

OVERFIT = dataclasses.replace(PARAMS, epochs=12, lr=5e-3, batch_tokens=150, clip_norm=1.0)


def curves(result: FitResult) -> dict[str, bytes]:
    root = result.journal.live / METRICS
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*.tsv"))}


def weights(result: FitResult) -> dict[str, torch.Tensor]:
    return dict(result.drafter.state_dict())


def assert_same_bits(one: FitResult, other: FitResult) -> None:
    assert one.summary == other.summary
    assert curves(one) == curves(other)
    assert weights(one).keys() == weights(other).keys()
    for name, tensor in weights(one).items():
        assert torch.equal(tensor, weights(other)[name]), name


@pytest.mark.parametrize(("optimizer", "lr"), [("adamw", 5e-3), ("muon", 2e-2)])
def test_it_learns_what_the_target_said(inputs: FitInputs, tmp_path: Path, optimizer: str, lr: float) -> None:
    result = train(inputs, dataclasses.replace(OVERFIT, optimizer=optimizer, lr=lr), tmp_path)
    summary = result.summary
    assert summary["untrained_acceptance_length"] < 1.3
    assert summary["acceptance_length"] > 1.9  # of 3 at most: two draft steps and the bonus
    assert summary["rises_above_untrained"]
    hits = [
        draft_chain_hits(result.drafter, inputs.vocab, inputs.val[index], inputs.head.embedding, 2).hits
        for index in range(len(inputs.val))
    ]
    accepted = torch.cat(hits).long().cumprod(dim=1).sum(dim=1).double()
    assert 1 + accepted.mean().item() == pytest.approx(summary["acceptance_length"])


def test_two_runs_are_the_same_bits_and_draw_no_random_numbers(inputs: FitInputs, tmp_path: Path) -> None:
    params = dataclasses.replace(OVERFIT, epochs=2, optimizer="muon")
    first = train(inputs, params, tmp_path / "a")
    state = torch.get_rng_state()
    torch.rand(17)
    second = train(inputs, params, tmp_path / "b")
    assert_same_bits(first, second)
    assert torch.equal(state, torch.get_rng_state())
    longer = train(inputs, dataclasses.replace(params, epochs=3), tmp_path / "c")
    assert torch.equal(state, torch.get_rng_state()), (
        "a step draws random numbers, so a state must keep the generator"
    )
    assert longer.summary["steps"] > first.summary["steps"]


def test_the_curves_have_every_step_once(inputs: FitInputs, tmp_path: Path) -> None:
    result = train(inputs, dataclasses.replace(OVERFIT, epochs=2), tmp_path)
    steps = result.summary["steps"]
    found = curves(result)
    assert {"train/loss.tsv", "train/lr.tsv", "train/grad_norm.tsv", "train/loss_step_2.tsv"} <= found.keys()
    rows = found["train/loss.tsv"].decode().splitlines()
    assert rows[0] == "step\tloss"
    assert [int(row.split("\t")[0]) for row in rows[1:]] == list(range(1, steps + 1))
    validations = found["val/acceptance_length.tsv"].decode().splitlines()
    assert [int(row.split("\t")[0]) for row in validations[1:]] == [0, steps // 2, steps]


def test_the_table_of_validations(inputs: FitInputs, tmp_path: Path) -> None:
    result = train(inputs, dataclasses.replace(OVERFIT, epochs=1, val_every_steps=2), tmp_path)
    write_validations(tmp_path / "table.tsv", result.record)
    head, *rows = [line.split("\t") for line in (tmp_path / "table.tsv").read_text().splitlines()]
    assert head[:3] == ["epoch", "step", "acceptance_length"]
    assert [row[:2] for row in rows] == [["0", "0"], ["1", "2"], ["1", str(result.summary["steps"])]]
    assert float(rows[-1][2]) == result.record.validations[-1].acceptance_length


@pytest.mark.parametrize("normaliser", ["token", "sequence"])
def test_passes_change_nothing_but_the_order_of_sums(
    inputs: FitInputs, tmp_path: Path, normaliser: str
) -> None:
    objective = dataclasses.replace(PARAMS.objective, normaliser=normaliser, kind_weights={"answer": 2.0})
    params = dataclasses.replace(OVERFIT, epochs=1, lr=1e-3, objective=objective)
    whole = train(inputs, params, tmp_path / "whole")
    parts = train(inputs, params, tmp_path / "parts", dataclasses.replace(COMPUTE, pass_tokens=30))
    assert parts.summary["steps"] == whole.summary["steps"]
    for name, tensor in weights(whole).items():
        torch.testing.assert_close(weights(parts)[name], tensor, rtol=1e-3, atol=2e-5)
    assert losses(parts) == pytest.approx(losses(whole), rel=1e-4)


def losses(result: FitResult) -> list[float]:
    rows = curves(result)["train/loss.tsv"].decode().splitlines()[1:]
    return [float(row.split("\t")[1]) for row in rows]


def test_a_frozen_head_keeps_the_target_rows(inputs: FitInputs, tmp_path: Path) -> None:
    result = train(inputs, dataclasses.replace(OVERFIT, epochs=1, freeze_lm_head=True), tmp_path)
    assert torch.equal(result.drafter.lm_head.weight, inputs.head.lm_head[inputs.vocab.draft_ids])
    assert result.summary["trained_parameters"] < result.summary["parameters"]


def test_the_average_is_validated_and_published(inputs: FitInputs, tmp_path: Path) -> None:
    params = dataclasses.replace(OVERFIT, epochs=2, publish="last")
    plain = train(inputs, params, tmp_path / "plain")
    averaged = train(inputs, dataclasses.replace(params, ema=0.9), tmp_path / "averaged")
    state = averaged.journal.read()
    assert state is not None
    assert torch.equal(state.tensors["drafter.fc.weight"], weights(plain)["fc.weight"])  # it only watches
    assert torch.equal(state.tensors["average.fc.weight"], weights(averaged)["fc.weight"])
    assert averaged.summary["val"]["loss"] != plain.summary["val"]["loss"]


def test_bf16_keeps_weights_and_state_in_float32(inputs: FitInputs, tmp_path: Path) -> None:
    params = dataclasses.replace(OVERFIT, epochs=2)
    result = train(inputs, dataclasses.replace(params, precision="bf16-mixed"), tmp_path / "half")
    exact = train(inputs, params, tmp_path / "full")
    state = result.journal.read()
    assert state is not None
    assert {tensor.dtype for tensor in state.tensors.values()} == {torch.float32}
    assert losses(result) != losses(exact)
    assert losses(result) == pytest.approx(losses(exact), rel=0.02)


@pytest.mark.parametrize("publish", ["best", "last"])
def test_best_or_last_is_published(
    inputs: FitInputs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, publish: str
) -> None:
    lengths = iter([1.0, 1.5, 2.0, 1.7])
    result_of = AcceptanceSums.result
    monkeypatch.setattr(
        AcceptanceSums, "result", lambda sums: {**result_of(sums), "acceptance_length": next(lengths)}
    )
    kept: list[torch.Tensor] = []
    save = TrainJournal.save

    def keeping(journal: TrainJournal, trained: Trained, record: Record) -> None:
        kept.append(trained.drafter.fc.weight.detach().clone())
        save(journal, trained, record)

    monkeypatch.setattr(TrainJournal, "save", keeping)
    result = train(inputs, dataclasses.replace(OVERFIT, epochs=3, publish=publish), tmp_path)
    place = {"best": 1, "last": 2}[publish]
    assert result.summary["acceptance_length"] == [1.5, 2.0, 1.7][place]
    assert result.summary["best_acceptance_length"] == 2.0
    assert result.summary["last_acceptance_length"] == 1.7
    assert result.summary["published_epoch"] == place + 1
    assert torch.equal(result.drafter.fc.weight, kept[place])
    assert [path.name for path in result.journal.directory.glob("best-*")] == [
        f"best-{result.summary['best_step']}.safetensors"
    ]


def test_early_stopping(inputs: FitInputs, tmp_path: Path) -> None:
    params = dataclasses.replace(OVERFIT, epochs=40, lr=1e-9, early_stopping=2)
    result = train(inputs, params, tmp_path)
    assert result.summary["stopped_early"]
    assert result.summary["epochs"] == 3  # the first is the best, and two are no better


def test_stopping_before_the_first_row_of_the_curves(
    inputs: FitInputs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A long run writes a row every so many steps; those since the last one are not lost."""
    monkeypatch.setattr("eyas.train.loop.ROWS", 1)
    result = train(inputs, dataclasses.replace(OVERFIT, epochs=40, lr=1e-9, early_stopping=2), tmp_path)
    rows = (result.journal.live / METRICS / "train" / "loss.tsv").read_text().splitlines()
    assert len(rows) == 2
    assert rows[1].startswith(f"{result.record.step}\t")


def test_its_own_output_is_no_drafter_to_start_from(inputs: FitInputs, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="own output") as error:
        train(inputs, dataclasses.replace(OVERFIT, init_from="models/drafter"), tmp_path)
    assert "copy" in str(error.value.hint)


def test_a_drafter_that_does_not_learn_is_named(
    inputs: FitInputs, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    result = train(inputs, dataclasses.replace(OVERFIT, epochs=2, lr=1e-9), tmp_path)
    warnings = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert sum("the drafter does not learn" in message for message in warnings) == 1
    assert not result.summary["rises_above_untrained"]


def test_a_stop_within_the_first_epoch_says_so_too(
    inputs: FitInputs, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    params = dataclasses.replace(OVERFIT, lr=1e-9, val_every_steps=1, early_stopping=2, batch_tokens=64)
    result = train(inputs, params, tmp_path)
    assert result.summary["stopped_early"]
    assert result.summary["steps"] == 3
    warnings = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert sum("the drafter does not learn" in message for message in warnings) == 1


def test_seconds_are_told_apart(inputs: FitInputs, tmp_path: Path) -> None:
    compute = dataclasses.replace(COMPUTE, checkpoint_every_s=0.0)
    speed = train(inputs, dataclasses.replace(OVERFIT, epochs=2), tmp_path, compute).speed
    assert 0 < speed["seconds_validating"] < speed["seconds"]
    assert 0 < speed["seconds_saving"] < speed["seconds"]


def test_val_sequences_choose_by_id(inputs: FitInputs, tmp_path: Path) -> None:
    result = train(inputs, dataclasses.replace(OVERFIT, epochs=1, val_sequences=3), tmp_path)
    assert result.summary["val_sequences"] == 3


def test_starting_from_a_drafter(inputs: FitInputs, tmp_path: Path) -> None:
    from eyas.drafter.checkpoint import save_drafter

    first = train(inputs, dataclasses.replace(OVERFIT, epochs=4), tmp_path / "first")
    (tmp_path / "drafter").mkdir()
    save_drafter(tmp_path / "drafter", first.drafter, inputs.vocab)
    params = dataclasses.replace(OVERFIT, epochs=1, lr=1e-9, init_from=str(tmp_path / "drafter"))
    result = train(inputs, params, tmp_path / "again")
    assert result.summary["untrained_acceptance_length"] == first.summary["acceptance_length"]


def test_a_loss_that_is_not_finite_stops(inputs: FitInputs, tmp_path: Path) -> None:
    head = dataclasses.replace(inputs.head, lm_head=torch.full_like(inputs.head.lm_head, torch.inf))
    with pytest.raises(GateError, match="the loss is not finite at step 0") as error:
        train(dataclasses.replace(inputs, head=head), dataclasses.replace(OVERFIT, epochs=1), tmp_path)
    assert "train:" in str(error.value.where)


def test_too_little_memory_names_the_longest_sequence(
    inputs: FitInputs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: DrafterModule, batch: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(DrafterModule, "rehearse", full)
    longest = max(range(len(inputs.train)), key=inputs.train.lengths.__getitem__)
    with pytest.raises(GateError, match="memory does not suffice") as error:
        train(inputs, OVERFIT, tmp_path, ComputeParams(accelerator="cpu", devices=1, pass_tokens=40))
    assert inputs.train.sequence_ids[longest] in str(error.value.where)
    assert "compute.pass_tokens (now 40)" in str(error.value.hint)


def test_the_rehearsal_changes_nothing(
    inputs: FitInputs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    params = dataclasses.replace(OVERFIT, epochs=1)
    rehearsed = train(inputs, params, tmp_path / "with")
    monkeypatch.setattr(DrafterModule, "rehearse", lambda self, batch: None)
    assert_same_bits(rehearsed, train(inputs, params, tmp_path / "without"))


def test_the_folder_says_what_it_belongs_to(inputs: FitInputs, tmp_path: Path) -> None:
    result = train(inputs, dataclasses.replace(OVERFIT, epochs=1), tmp_path)
    values = json.loads((result.journal.directory / "fingerprint.json").read_text())
    assert values["params"]["lr"] == 5e-3
    assert values["target"] == inputs.profile.digest
