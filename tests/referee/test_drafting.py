"""The referee against the trainer's own drafter: other code, the same numbers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from eyas.drafter.batch import pack
from eyas.drafter.chains import replay_chains
from eyas.drafter.unroll import unroll
from eyas.referee.folder import read_folder
from eyas.referee.reading import Reading
from eyas.referee.simulation import leading_hits, simulate, teacher_forced
from eyas.shards import SequenceStates
from tests.referee.hand_made import (
    HandMade,
    answered,
    echoing,
    make_drafter,
    plain_config,
    plain_tensors,
    write_folder,
)

NORM_FLAGS = ("norm_before_fc", "fc_norm", "norm_before_residual", "norm_output")
FLAGS = [
    dict(zip(NORM_FLAGS, map(bool, values), strict=True))
    for values in np.ndindex(2, 2, 2, 2)
    if not (values[0] and values[1])
]
SCALED = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}
STEPS = 4


@pytest.mark.parametrize("flags", [*FLAGS, {"rope_scaling": SCALED}], ids=str)
def test_logits_are_the_trainers_at_every_draft_step(
    made: HandMade, tmp_path: Path, flags: dict[str, Any]
) -> None:
    drafter = make_drafter(**flags)
    folder = write_folder(tmp_path, plain_config(drafter), plain_tensors(drafter, made.vocab))
    reading = read_folder(folder, made.target)
    for states, answer in zip(made.sequences, made.answers, strict=True):
        batch = pack([states], STEPS)
        with torch.no_grad():
            steps = unroll(drafter, batch, torch.from_numpy(made.embedding), STEPS)
            trained = [drafter.logits(output).numpy() for output in steps]
        for step, logits in enumerate(teacher_forced(reading, answer, STEPS)):
            assert len(logits) == len(batch.anchors) - step
            np.testing.assert_allclose(logits, trained[step][: len(logits)], rtol=2e-4, atol=2e-4)


def test_chains_are_those_of_the_trainers_replay(made: HandMade, tmp_path: Path) -> None:
    """On answers that the drafter itself would give for a while, so that drafts reach every length."""
    drafter = make_drafter(norm_output=True)
    folder = write_folder(tmp_path, plain_config(drafter), plain_tensors(drafter, made.vocab))
    reading = read_folder(folder, made.target)
    sequences = [liked(reading, each) for each in made.sequences]
    answers = HandMade(made.vocab, made.embedding, made.target, sequences).answers
    found = leading_hits(reading, answers, STEPS)
    replayed = replay_chains(drafter, made.vocab, sequences, torch.from_numpy(made.embedding), STEPS)
    expected = [torch.cumprod(each.hits.int(), dim=1).sum(dim=1).tolist() for each in replayed]
    assert [each.tolist() for each in found] == expected
    assert {count for each in expected for count in each} >= {0, 1, 2}


def liked(reading: Reading, states: SequenceStates) -> SequenceStates:
    """The answer with three of four tokens replaced by what the drafter predicts there at its first step."""
    for place in range(len(answered(states).anchors)):
        if place % 4 < 3:
            answer = answered(states)
            choice = int(reading.target_ids[teacher_forced(reading, answer, 1)[0][place].argmax()])
            tokens = states.token_ids.tolist()
            tokens[answer.first + 1 + place] = choice
            states = echoing(states, tokens[answer.first :])
    return states


def test_an_engine_walks_from_draft_to_draft(made: HandMade, tmp_path: Path) -> None:
    drafter = make_drafter()
    folder = write_folder(tmp_path, plain_config(drafter), plain_tensors(drafter, made.vocab))
    simulated = simulate(read_folder(folder, made.target), made.answers, STEPS)
    for answer, counts in zip(made.answers, simulated.counts, strict=True):
        # every token behind the first one is drafted and accepted, or the target's own; the last round has no bonus
        kept = counts[0] + counts[1:].sum()
        assert len(answer.anchors) <= kept <= len(answer.anchors) + 1
    assert simulated.total.drafts == simulated.counts[:, 0].sum()


def test_where_the_answer_is_not_the_targets_choice_nothing_is_accepted(
    made: HandMade, tmp_path: Path
) -> None:
    drafter = make_drafter()
    folder = write_folder(tmp_path, plain_config(drafter), plain_tensors(drafter, made.vocab))
    reading = read_folder(folder, made.target)
    states = liked(reading, made.sequences[3])
    sound = HandMade(made.vocab, made.embedding, made.target, [states]).answers[0]
    sampled = HandMade(made.vocab, made.embedding, made.target, [states]).answers[0]
    sampled.greedy[:] = (sampled.greedy + 1) % 60
    assert sum(leading_hits(reading, [sound], 2)[0]) > 0
    assert sum(leading_hits(reading, [sampled], 2)[0]) == 0


def test_positions_that_do_not_advance_change_later_steps_alone(made: HandMade, tmp_path: Path) -> None:
    drafter = make_drafter()
    folder = write_folder(tmp_path, plain_config(drafter), plain_tensors(drafter, made.vocab))
    reading = read_folder(folder, made.target)
    sound = teacher_forced(reading, made.answers[0], 2)
    stuck = teacher_forced(replace(reading, positions_advance=False), made.answers[0], 2)
    np.testing.assert_array_equal(sound[0], stuck[0])
    assert np.abs(sound[1] - stuck[1]).max() > 1e-3
