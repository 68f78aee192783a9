"""Every cause planted in a tiny folder, or in a tiny engine, is the one that is named."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from eyas.acceptance import AcceptanceCounts
from eyas.doctor import trials
from eyas.doctor.causes import CAUSES
from eyas.doctor.diagnosis import Diagnosis, EngineCounts, diagnose
from eyas.doctor.faults import faults
from eyas.doctor.layers import LayerStates
from eyas.doctor.material import Material, read_material
from eyas.doctor.trials import fed, simulate_hypothesis
from eyas.referee.simulation import simulate
from eyas.referee.tensorfile import read_file
from eyas.shards import HiddenStore, ShardWriter
from eyas.target.model import capture, load_target
from tests.doctor.tiny_run import STEPS, TinyRun
from tests.pipeline.sabotage import Sabotage, ids_moved, sabotages, write_spoiled

IN_FOLDER = sabotages(torch.zeros(0))


def material(run: TinyRun, folder: Path, engine: str = "vllm") -> Material:
    return read_material(folder, run.target, run.store, run.store, engine=engine, steps=STEPS)


def counted(of: Material) -> EngineCounts:
    """What an engine counts that does what the folder says."""
    states = of.states(of.held_out, of.as_is.layer_ids)
    assert states is not None
    return EngineCounts(simulate(of.as_is, states, STEPS).total, same_answers=True)


def examined(run: TinyRun, folder: Path) -> Diagnosis:
    of = material(run, folder)
    return diagnose(of, "vllm", counted(of))


@pytest.mark.parametrize("number", range(len(IN_FOLDER)), ids=[each.name for each in IN_FOLDER])
def test_a_spoiled_folder(run: TinyRun, tmp_path: Path, number: int) -> None:
    sabotage: Sabotage = sabotages(run.head.lm_head)[number]
    of = material(run, write_spoiled(tmp_path, run.sound, sabotage.spoil))
    if (
        sabotage.cause == "head_of_target"
    ):  # right for a drafter with a frozen head: training's own file decides
        of = replace(of, trained=read_file(run.sound / "model.safetensors"))
    found = diagnose(of, "vllm", counted(of))
    assert found.cause == sabotage.cause, found.suspects
    assert found.engine_follows
    first = found.suspects[0]
    assert first.where == "folder"
    assert first.change is not None
    assert first.log_ratio is None or first.log_ratio > np.log(1000)


def test_layers_that_are_absent_are_the_default_ones(run: TinyRun, tmp_path: Path) -> None:
    """Trained on the stored layers 2, 4, 5 of 8; another target would have other default ones."""

    def spoil(config: dict[str, object], tensors: dict[str, torch.Tensor]) -> None:
        del config["eagle_aux_hidden_state_layer_ids"]

    folder = write_spoiled(tmp_path, run.sound, spoil)
    assert examined(run, folder).cause is None  # the default layers are those that it was trained on
    of = material(run, folder)
    of = replace(of, target=replace(of.target, num_layers=7), as_is=replace(of.as_is, layer_ids=[2, 3, 4]))
    found = diagnose(of, "vllm", counted(of))
    assert found.cause == "aux_layers_default"
    assert found.suspects[0].change is not None
    assert found.suspects[0].change.should == "[2, 4, 5]"


def test_layers_next_to_the_stored_ones_are_named_on_little_evidence(
    run: TinyRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is beyond doubt here; a folder with the stored layers stays sound all the same."""
    monkeypatch.setattr(trials, "MIN_LOG_RATIO", float("inf"))
    moved = write_spoiled(tmp_path / "moved", run.sound, ids_moved(-1))
    assert examined(run, moved).cause == "aux_layers_shifted"
    assert examined(run, run.sound).cause is None


def test_other_layers_that_predict_better_than_the_stored_ones_are_no_fault(
    run: TinyRun, tmp_path: Path
) -> None:
    """A drafter from elsewhere may read what this run did not store."""
    others = [number - 1 for number in run.profile.aux_layer_ids]
    model = load_target(run.target, "float32")
    writer = ShardWriter(tmp_path / "store", replace(run.store.meta, aux_layer_ids=others), shard_bytes=10**9)
    for each in run.sequences:
        states = capture(model, each.token_ids[None].long(), None, others)
        writer.add(replace(each, aux=states.aux[0].clone()))
    writer.close()
    elsewhere = replace(run, store=HiddenStore(tmp_path / "store"))
    assert examined(elsewhere, run.sound).cause is None


def test_a_sound_folder_has_no_fault(run: TinyRun) -> None:
    found = examined(run, run.sound)
    assert found.suspects == []
    assert "no integration fault: the engine accepts what the folder predicts" in found.verdict
    assert "no integration fault in the folder" in diagnose(material(run, run.sound), "vllm", None).verdict


@pytest.mark.parametrize("steps", [3, 20])
def test_a_weak_drafter_is_not_an_integration_fault(run: TinyRun, tmp_path: Path, steps: int) -> None:
    found = examined(run, run.trained(tmp_path, steps=steps))
    assert found.as_is is not None
    assert (found.as_is.length or 1) < 2.5
    assert found.suspects == []
    assert "is the drafter's own" in found.verdict


def test_a_head_that_is_the_targets_is_a_doubt_as_long_as_nobody_knows_the_trained_one(
    run: TinyRun, tmp_path: Path
) -> None:
    head = next(each for each in sabotages(run.head.lm_head) if each.cause == "head_of_target")
    found = examined(run, write_spoiled(tmp_path, run.sound, head.spoil))
    assert [each.cause for each in found.findings if each.severity == "doubt"] == ["head_of_target"]
    assert found.suspects == []


def test_only_the_first_step_was_trained(run: TinyRun, tmp_path: Path) -> None:
    found = examined(run, run.trained(tmp_path, steps=60, draft_steps=1))
    assert found.cause == "first_step_only"
    assert found.suspects[0].where == "training"


@pytest.mark.parametrize(
    "cause",
    ["aux_order", "aux_layers_shifted", "embedding", "rope_theta", "norm_before_residual", "other_target"],
)
def test_a_fault_of_the_engine(run: TinyRun, cause: str) -> None:
    """Faults that count alike can't be told apart: the planted one must be among those that fit best."""
    of = material(run, run.sound)
    fault = next(each for each in faults(of) if each.cause == cause)
    simulated = simulate_hypothesis(of, fault)
    assert simulated is not None
    found = diagnose(of, "vllm", EngineCounts(simulated.total, same_answers=True))
    assert found.engine_follows is False
    best = [each for each in found.suspects if each.log_ratio == found.suspects[0].log_ratio]
    assert fault.what in [each.what for each in best]
    assert best[0].where in ("engine", "target")


def test_what_accepts_nothing_is_not_decided(run: TinyRun) -> None:
    of = material(run, run.sound)
    nothing = EngineCounts(AcceptanceCounts(900, [0, 0, 0]), same_answers=True)
    found = diagnose(of, "vllm", nothing)
    assert {"d2t_ignored", "head_missing"} & {each.cause for each in found.suspects[:4]}
    assert found.suspects[0].against_next is not None
    assert found.suspects[0].against_next < 5.0


def test_a_fault_of_the_engine_counted_on_other_prompts(run: TinyRun) -> None:
    of = material(run, run.sound)
    fault = next(each for each in faults(of) if each.cause == "aux_order")
    half = replace(of, held_out=of.held_out[::2])
    other = replace(of, held_out=of.held_out[1::2])
    assert diagnose(half, "vllm", replace(counted(other), same_answers=False)).suspects == []
    simulated = simulate_hypothesis(other, fault)
    assert simulated is not None
    found = diagnose(half, "vllm", EngineCounts(simulated.total, same_answers=False))
    assert fault.cause in [each.cause for each in found.suspects]


def test_counts_that_nothing_explains(run: TinyRun) -> None:
    found = diagnose(
        material(run, run.sound), "vllm", EngineCounts(AcceptanceCounts(400, [396, 20, 19]), True)
    )
    assert found.suspects == []
    assert "neither those of the folder nor those of a fault" in found.verdict


def test_other_layers_are_said_without_the_target(run: TinyRun, tmp_path: Path) -> None:
    ids_output = next(each for each in IN_FOLDER if each.name == "ids-output")
    of = material(run, write_spoiled(tmp_path, run.sound, ids_output.spoil))
    found = diagnose(replace(of, layers=LayerStates(tmp_path / "nowhere", "float32")), "vllm", None)
    assert found.as_is is None
    assert found.skipped[0].startswith("the folder as it is: the target can't be loaded")
    assert found.cause == "aux_layers_other"
    assert found.suspects[0].change is not None
    assert found.suspects[0].change.should == "[2, 4, 5]"


def test_a_target_that_gives_other_states(run: TinyRun) -> None:
    of = material(run, run.sound)
    served = of.layers.of(of.held_out, of.store_ids, quantised=True)
    assert served is not None
    moved = [replace(each, aux=other.aux) for each, other in zip(of.held_out, served, strict=True)]
    counts = simulate(of.as_is, of.held_out, STEPS).total
    found = diagnose(replace(of, held_out=moved), "vllm", EngineCounts(counts, same_answers=True))
    assert found.cause == "other_target"
    assert found.suspects[0].where == "target"


def test_sglang_has_no_norm_before_residual(run: TinyRun) -> None:
    of = material(run, run.sound, "sglang")
    found = diagnose(of, "sglang", None)
    assert found.cause == "norm_before_residual"
    assert "SGLang does not know" in found.suspects[0].what


def test_states_of_the_target_are_those_that_were_stored(run: TinyRun) -> None:
    of = material(run, run.sound)
    again = of.layers.of(of.held_out[:3], of.store_ids)
    assert again is not None
    for new, old in zip(again, of.held_out, strict=False):
        np.testing.assert_allclose(new.aux, old.aux, rtol=1e-4, atol=1e-4)
        known = old.greedy >= 0
        np.testing.assert_array_equal(new.greedy[known], old.greedy[known])


def test_an_order_is_that_of_the_columns(run: TinyRun) -> None:
    of = material(run, run.sound)
    reverse = next(each for each in faults(of) if each.cause == "aux_order")
    states = fed(of, of.held_out[:1], reverse)
    assert states is not None
    np.testing.assert_array_equal(states[0].aux, of.held_out[0].aux[:, ::-1])


def test_every_sabotage_has_a_cause_that_is_known() -> None:
    assert {each.cause for each in IN_FOLDER} <= set(CAUSES)
