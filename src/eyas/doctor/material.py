"""What a diagnosis is made of: the drafter's folder, its target, and answers with the target's states."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from eyas.doctor.layers import LayerStates
from eyas.errors import ArtifactError
from eyas.referee.drafting import Answered
from eyas.referee.folder import Folder, read_as
from eyas.referee.reading import Reading
from eyas.referee.target import TargetSide
from eyas.referee.tensorfile import StoredTensor, read_file
from eyas.shards import HiddenStore, SequenceStates

ANSWER_TOKENS = 48
"""Answers are cut to so many tokens where readings are compared: more sequences tell more than longer ones."""

LEARNED_BYTES = 1 << 30
"""Most memory for the states of such answers."""


@dataclass(frozen=True)
class Material:
    """Everything that is simulated on."""

    folder: Folder
    target: TargetSide
    as_is: Reading
    """What the engine makes of the folder."""
    steps: int
    """Draft tokens K."""
    store_ids: list[int]
    """Layers that were stored, hidden_states indices."""
    held_out: list[Answered]
    """Answers whose acceptance is simulated."""
    learned: list[Answered]
    """Answers that readings are compared on: best those that the drafter was trained on, cut to ANSWER_TOKENS; in
    random order, so that the first ones stand for all."""
    layers: LayerStates
    """States of other layers, recomputed if need be."""
    trained: Mapping[str, StoredTensor] = field(default_factory=dict)
    """Tensors that training wrote, if its folder is at hand."""

    def states(self, answers: Sequence[Answered], layer_ids: Sequence[int]) -> list[Answered] | None:
        """Answers with the states of these layers; None if they are not stored and can't be recomputed."""
        if list(layer_ids) == self.store_ids:
            return list(answers)
        return self.layers.of(answers, layer_ids)


def read_material(
    directory: Path,
    target: Path,
    held_out: HiddenStore,
    learned: HiddenStore,
    *,
    engine: str,
    steps: int,
    sequences: int = 320,
    wanted: Callable[[str], bool] = lambda _: True,
    trained: Path | None = None,
    trust_remote_code: bool = False,
) -> Material:
    """Read a folder, its target and stored answers.

    Args:
        directory: the drafter.
        target: the target's folder.
        held_out: answers to simulate the acceptance on.
        learned: answers to compare readings on.
        engine: vllm | sglang.
        steps: draft tokens.
        sequences: most sequences to compare readings on.
        wanted: by sequence id, which held-out ones to simulate.
        trained: drafter.safetensors of training, to compare the folder's tensors with.
        trust_remote_code: for the target.

    Raises:
        ArtifactError: a file is missing or damaged, or the engine would refuse the folder.
    """
    folder, side = Folder.read(directory), TargetSide.read(target)
    places = [place for place, name in enumerate(held_out.sequence_ids) if wanted(name)]
    if not places:
        raise ArtifactError("no stored answer is of the kind asked for", where=str(held_out.directory))
    if held_out.meta.aux_layer_ids != learned.meta.aux_layer_ids:
        raise ArtifactError(
            "the two stores hold different layers", where=f"{held_out.directory}, {learned.directory}"
        )
    order = np.random.default_rng(0).permutation(len(learned))
    width = len(learned.meta.aux_layer_ids) * side.hidden_size * 4
    return Material(
        folder=folder,
        target=side,
        as_is=read_as(folder, side, engine),
        steps=steps,
        store_ids=list(held_out.meta.aux_layer_ids),
        held_out=[each for place in places if len((each := answered(held_out[place])).anchors)],
        learned=list(
            _within(LEARNED_BYTES // width, (cut(answered(learned[int(p)])) for p in order), sequences)
        ),
        layers=LayerStates(target, side.dtype, trust_remote_code=trust_remote_code),
        trained=read_file(trained) if trained is not None else {},
    )


def _within(tokens: int, answers: Iterable[Answered], count: int) -> Iterator[Answered]:
    """The first ones that fit, of those in which something can be drafted."""
    for each in answers:
        tokens -= len(each.token_ids)
        if count <= 0 or tokens < 0:
            return
        if len(each.anchors):
            count -= 1
            yield each


def answered(states: SequenceStates) -> Answered:
    """A stored sequence for the referee."""
    mask = states.loss_mask.numpy()
    greedy = np.full(len(mask), -1, np.int64)
    greedy[states.label_positions.numpy()] = states.argmax.numpy()
    return Answered(
        sequence_id=states.sequence_id,
        token_ids=states.token_ids.numpy().astype(np.int64),
        first=int(mask.argmax()) if mask.any() else len(mask),
        aux=states.aux.float().numpy(),
        greedy=greedy,
    )


def cut(answer: Answered, tokens: int = ANSWER_TOKENS) -> Answered:
    """The same with at most so many answer tokens."""
    end = answer.first + tokens
    return replace(answer, token_ids=answer.token_ids[:end], aux=answer.aux[:end], greedy=answer.greedy[:end])
