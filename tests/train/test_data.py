from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch

from eyas.drafter.batch import pack
from eyas.errors import ArtifactError, GateError
from eyas.shards import HiddenStore
from eyas.tokenkinds import PROMPT
from eyas.train.data import DrafterData, Steps, TrainableSequences, Work
from eyas.train.fit import FitInputs
from eyas.train.guards import check_labels, check_supervision

from .example import PARAMS, Language, write_store


def store_of(inputs: FitInputs, path: Path, rows: list[tuple[int, int, float]]) -> HiddenStore:
    language = Language.of(inputs.head)
    sequences = [
        language.sequence(f"s:{number}", prompt, answer, number, weight)
        for number, (prompt, answer, weight) in enumerate(rows)
    ]
    return write_store(path, inputs.profile, sequences)


def test_sequences_without_an_anchor_or_weight_are_left_out(inputs: FitInputs, tmp_path: Path) -> None:
    rows = [(3, 1, 1.0), (3, 2, 1.0), (3, 9, 0.0), (1, 5, 0.5)]
    chosen = TrainableSequences(store_of(inputs, tmp_path / "store", rows))
    assert [chosen[place].sequence_id for place in range(len(chosen))] == ["s:1", "s:3"]
    assert chosen.sizes.tokens.tolist() == [5, 6]
    assert chosen.sizes.labels.tolist() == [1, 4]


@pytest.mark.parametrize(
    ("rows", "message"),
    [([(3, 1, 1.0)], "two generated tokens in a row"), ([(3, 9, 0.0), (3, 5, 0.0)], "weight 0")],
)
def test_nothing_to_train_on(
    inputs: FitInputs, tmp_path: Path, rows: list[tuple[int, int, float]], message: str
) -> None:
    with pytest.raises(GateError, match=message):
        TrainableSequences(store_of(inputs, tmp_path / "store", rows))


def test_a_subset_stays_when_others_come_and_go(inputs: FitInputs, tmp_path: Path) -> None:
    rows = [(3, 5, 1.0)] * 12
    all_of = TrainableSequences(store_of(inputs, tmp_path / "a", rows), 4)
    fewer = TrainableSequences(store_of(inputs, tmp_path / "b", rows[:9]), 4)
    kept = {all_of[place].sequence_id for place in range(4)}
    assert len(kept & {fewer[place].sequence_id for place in range(4)}) == len(
        kept & {f"s:{number}" for number in range(9)}
    )


def test_a_label_at_a_prompt_position_names_the_sequence(inputs: FitInputs) -> None:
    states = inputs.train[0]
    check_labels(states, Path("store"))
    for labels, position in (
        (
            torch.cat((states.label_positions[:1] - 1, states.label_positions)),
            int(states.label_positions[0]) - 1,
        ),
        (states.label_positions[:-1], int(states.label_positions[-1])),
    ):
        with pytest.raises(ArtifactError, match=f"{states.sequence_id} .* position {position}"):
            check_labels(dataclasses.replace(states, label_positions=labels), Path("store"))


def test_training_on_a_prompt_token_names_the_sequence(inputs: FitInputs) -> None:
    batch = pack([inputs.train[0], inputs.train[1]], 2)
    check_supervision(batch)
    kinds = batch.label_kinds.clone()
    kinds[-1] = PROMPT
    with pytest.raises(GateError, match="a label of sequence train:1 is a prompt token"):
        check_supervision(dataclasses.replace(batch, label_kinds=kinds))


def data_of(inputs: FitInputs, *, processes: int = 1, pass_tokens: int | None = None) -> list[DrafterData]:
    parts = [
        DrafterData(inputs.train, inputs.val, inputs.vocab, PARAMS, pass_tokens) for _ in range(processes)
    ]
    for process, data in enumerate(parts):
        data.processes, data.process = processes, process
    return parts


def works(data: DrafterData) -> list[tuple[Work, list[str]]]:
    stretch = data.course.stretches[0]
    return [
        (work, [name for batch in work.batches for name in batch.sequence_ids])
        for work in Steps(data, stretch, 0)
    ]


@pytest.mark.parametrize("processes", [2, 3, 7])
def test_processes_divide_each_step(inputs: FitInputs, processes: int) -> None:
    (alone,) = data_of(inputs)
    parts = [works(data) for data in data_of(inputs, processes=processes, pass_tokens=30)]
    for place, (work, ids) in enumerate(works(alone)):
        shares = [part[place] for part in parts]
        counted = [name for other, names in shares if not other.idle for name in names]
        assert sorted(counted) == sorted(ids)
        total = torch.stack([other.weight_sums for other, _ in shares]).sum(dim=0)
        torch.testing.assert_close(total, work.weight_sums)
        assert {(other.number, other.tokens, other.labels) for other, _ in shares} == {
            (work.number, work.tokens, work.labels)
        }
        assert all(other.count >= 1 and names for other, names in shares), "each process needs a gradient"
    if processes == 7:
        assert any(other.idle for part in parts for other, _ in part)


def test_val_is_divided_too(inputs: FitInputs) -> None:
    parts = [data.val_passes() for data in data_of(inputs, processes=3)]
    everything = np.concatenate([share for part in parts for share in part])
    assert sorted(everything.tolist()) == list(range(len(inputs.val)))
    lonely = [len(list(data.val_dataloader())) for data in data_of(inputs, processes=20)]
    assert min(lonely) == 1, "a process without a share must validate too, or the others wait for it"


def test_the_heaviest_passes_hold_the_longest_sequence(inputs: FitInputs) -> None:
    (data,) = data_of(inputs, pass_tokens=40)
    found = data.heaviest_passes()
    assert max(data.train.sizes.tokens[part].max() for part in found) == data.train.sizes.tokens.max()
    loads = data.train.sizes.loads(PARAMS.ttt_steps)
    heaviest = max(loads[part].sum() for part in found)
    for epoch in range(PARAMS.epochs):
        for step in data.course.steps_of(epoch):
            from eyas.train.plan import passes

            for part in passes(step, data.train.sizes.tokens, 40):
                assert loads[part].sum() <= heaviest
