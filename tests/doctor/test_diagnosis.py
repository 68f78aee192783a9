"""Every cause planted in a tiny folder, or in a tiny engine, is the one that is named."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from eyas.acceptance import AcceptanceCounts
from eyas.doctor.causes import CAUSES
from eyas.doctor.diagnosis import Diagnosis, EngineCounts, diagnose
from eyas.doctor.faults import faults
from eyas.doctor.layers import LayerStates
from eyas.doctor.material import Material, read_material
from eyas.doctor.trials import fed, simulate_hypothesis
from eyas.referee.simulation import simulate
from tests.doctor.tiny_run import STEPS, TinyRun
from tests.pipeline.sabotage import Sabotage, sabotages, write_spoiled

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
    found = examined(run, write_spoiled(tmp_path, run.sound, sabotage.spoil))
    assert found.cause == sabotage.cause, found.suspects
    assert found.engine_follows
    first = found.suspects[0]
    assert first.where == "folder"
    assert first.change is not None
    assert first.log_ratio is None or first.log_ratio > np.log(1000)


def test_layers_that_are_absent_are_the_default_ones(run: TinyRun, tmp_path: Path) -> None:
    """Trained on the stored layers 2, 4, 5 of 8; the target is made to have other default ones."""

    def spoil(config: dict[str, object], tensors: dict[str, torch.Tensor]) -> None:
        del config["eagle_aux_hidden_state_layer_ids"]

    folder = write_spoiled(tmp_path, run.sound, spoil)
    assert examined(run, folder).cause is None  # the default layers are those that it was trained on
    of = material(run, folder)
    of = replace(of, target=replace(of.target, num_layers=10), as_is=replace(of.as_is, layer_ids=[2, 5, 7]))
    found = diagnose(of, "vllm", counted(of))
    assert found.cause == "aux_layers_default"
    assert found.suspects[0].change is not None
    assert found.suspects[0].change.should == "[2, 4, 5]"


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


def test_a_head_that_training_left_frozen_is_not_a_fault(run: TinyRun, tmp_path: Path) -> None:
    found = examined(run, run.trained(tmp_path, steps=150, frozen=True))
    assert [each.cause for each in found.findings if each.severity == "doubt"] == ["head_of_target"]
    assert found.suspects == []


def test_only_the_first_step_was_trained(run: TinyRun, tmp_path: Path) -> None:
    found = examined(run, run.trained(tmp_path, steps=60, draft_steps=1))
    assert found.cause == "first_step_only"
    assert found.suspects[0].where == "training"


def test_every_fault_of_the_engine_that_shows_is_named(run: TinyRun) -> None:
    """Faults that count alike can't be told apart: the planted one must be among those that fit best."""
    of = material(run, run.sound)
    plain = counted(of)
    named = set()
    for fault in faults(of):
        simulated = simulate_hypothesis(of, fault)
        assert simulated is not None
        if np.abs(np.array(simulated.total.rates) - plain.counts.rates).max() < 0.05:
            continue  # as good as no fault
        found = diagnose(of, "vllm", EngineCounts(simulated.total, same_answers=True))
        assert found.engine_follows is False, fault.what
        best = [each for each in found.suspects if each.log_ratio == found.suspects[0].log_ratio]
        assert fault.what in [each.what for each in best], (fault.what, found.suspects[:2])
        named.add(fault.cause)
    assert named >= {
        "aux_order",
        "aux_layers_shifted",
        "embedding",
        "head_of_target",
        "d2t_ignored",
        "other_target",
    }


def test_a_fault_of_the_engine_counted_on_other_prompts(run: TinyRun) -> None:
    of = material(run, run.sound)
    fault = next(each for each in faults(of) if each.cause == "rope_theta")
    half = replace(of, held_out=of.held_out[::2])
    other = replace(of, held_out=of.held_out[1::2])
    simulated = simulate_hypothesis(other, fault)
    assert simulated is not None
    found = diagnose(half, "vllm", EngineCounts(simulated.total, same_answers=False))
    sound = diagnose(half, "vllm", replace(counted(other), same_answers=False))
    assert sound.suspects == []
    assert found.cause in (None, "rope_theta", "norm_before_residual", "positions")  # chance may hide it


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
