"""Greedy decoding with a drafter, replayed on stored hidden states without the target.

The engine's first draft of an answer starts at slot s-1, s being the first generated token; after a draft of
which `a` tokens were accepted it stands at slot p + a + 1. On greedy data this is exact: accepted tokens equal
the stored ones, so the stored hidden states are those that the engine would have seen.

Shapes: P anchors (slots at which a draft can start) of one sequence, K draft tokens, D draft rounds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray
from torch import Tensor

from eyas.drafter.chains import ChainHits, replay_chains
from eyas.drafter.model import Drafter
from eyas.drafter.vocab import VocabMap
from eyas.errors import ArtifactError
from eyas.shards import HiddenStore, SequenceStates

CELLS_PER_BATCH = 1_500_000
"""Anchors x slots of the sequences in one batch."""
TOKENS_PER_BATCH = 16_384
"""Tokens in one batch: times aux layers, hidden size and 4 bytes, the memory of its aux states."""
ANCHORS_PER_BATCH = 8_192
"""Anchors in one batch: times draft vocabulary and 4 bytes, the memory of its logits."""

ROUND_SCHEMA = {
    "sequence_id": pl.String,
    "draft_tokens": pl.Int32,
    "position": pl.Int32,
    "accepted": pl.Int32,
    "past_end": pl.Int32,
    "missed_in_vocab": pl.Boolean,
}

SEQUENCE_SCHEMA = {
    "sequence_id": pl.String,
    "labels": pl.Int64,
    "labels_in_vocab": pl.Int64,
    "labels_greedy": pl.Int64,
}


@dataclass(frozen=True)
class Replay:
    """All draft rounds of a set of sequences, and what the draft vocabulary covers of them."""

    rounds: pl.DataFrame
    """One row per round and number of draft tokens: sequence_id; draft_tokens K; position of the round in the
    answer, in tokens; accepted 0..K; past_end: drafted tokens beyond the answer's end, which can't be judged;
    missed_in_vocab: whether the token that ended the round could have been drafted, null if none was missed."""
    sequences: pl.DataFrame
    """One row per sequence: sequence_id, labels (tokens that could be drafted), how many of them are in the draft
    vocabulary (labels_in_vocab), and are what the target's argmax says (labels_greedy)."""


def replay(
    drafter: Drafter, vocab: VocabMap, store: HiddenStore, embedding: Tensor, draft_tokens: int
) -> Replay:
    """Replay every sequence of a store with 1..draft_tokens draft tokens.

    Raises:
        ArtifactError: a sequence's loss mask is not one run up to its end.
    """
    rounds: dict[str, list[Any]] = {name: [] for name in ROUND_SCHEMA}
    sequences: dict[str, list[Any]] = {name: [] for name in SEQUENCE_SCHEMA}
    for places in batches(store.lengths, store.label_counts):
        batch = [store[place] for place in places]
        chains = replay_chains(drafter, vocab, batch, embedding, draft_tokens)
        for states, chain in zip(batch, chains, strict=True):
            kept = vocab.t2d[states.argmax.long()].numpy()  # [P]: labels are those of step 0
            _check_one_answer(states, chain)
            sequences["sequence_id"].append(states.sequence_id)
            sequences["labels"].append(len(kept))
            sequences["labels_in_vocab"].append(int(kept.sum()))
            following = states.token_ids[states.label_positions.long() + 1]
            sequences["labels_greedy"].append(int((states.argmax == following).sum()))
            for count in range(1, draft_tokens + 1):
                _extend(rounds, states.sequence_id, walk(chain.hits.numpy()[:, :count], kept))
    return Replay(
        rounds=pl.DataFrame(rounds, schema=ROUND_SCHEMA).sort("sequence_id", "draft_tokens", "position"),
        sequences=pl.DataFrame(sequences, schema=SEQUENCE_SCHEMA).sort("sequence_id"),
    )


@dataclass(frozen=True)
class Rounds:
    """The draft rounds of one sequence, each array [D]; fields as in `Replay.rounds`."""

    draft_tokens: int
    position: NDArray[np.int64]
    accepted: NDArray[np.int64]
    past_end: NDArray[np.int64]
    missed_in_vocab: list[bool | None]


def walk(hits: NDArray[np.bool_], kept: NDArray[np.bool_]) -> Rounds:
    """The rounds of one answer.

    Args:
        hits: [P, K], drafted token k of anchor p is the target's; False past the end.
        kept: [P], the target's token after anchor p is in the draft vocabulary.
    """
    anchors, draft_tokens = hits.shape
    leading = np.cumprod(hits, axis=1, dtype=np.int64).sum(axis=1)  # [P]
    starts = []
    place = 0
    while place < anchors:
        starts.append(place)
        place += int(leading[place]) + 1
    position = np.array(starts, dtype=np.int64)
    accepted = leading[position]
    judged = np.minimum(anchors - position, draft_tokens)
    return Rounds(
        draft_tokens=draft_tokens,
        position=position,
        accepted=accepted,
        past_end=draft_tokens - judged,
        missed_in_vocab=[
            bool(kept[start + count]) if count < reach else None
            for start, count, reach in zip(starts, accepted.tolist(), judged.tolist(), strict=True)
        ],
    )


def batches(lengths: Sequence[int], label_counts: Sequence[int]) -> Iterator[list[int]]:
    """Places of sequences that are replayed together, similar lengths together, within the limits above."""
    batch: list[int] = []
    anchors = slots = 0
    for place in sorted(range(len(lengths)), key=lambda place: (lengths[place], place)):
        anchors, slots = max(anchors, label_counts[place]), max(slots, lengths[place])
        count = len(batch) + 1
        too_large = (
            count * anchors * slots > CELLS_PER_BATCH
            or count * slots > TOKENS_PER_BATCH
            or count * anchors > ANCHORS_PER_BATCH
        )
        if batch and too_large:
            yield batch
            batch, anchors, slots = [], label_counts[place], lengths[place]
        batch.append(place)
    if batch:
        yield batch


def _extend(columns: dict[str, list[Any]], sequence_id: str, rounds: Rounds) -> None:
    count = len(rounds.position)
    values: dict[str, Iterable[Any]] = {
        "sequence_id": [sequence_id] * count,
        "draft_tokens": [rounds.draft_tokens] * count,
        "position": rounds.position.tolist(),
        "accepted": rounds.accepted.tolist(),
        "past_end": rounds.past_end.tolist(),
        "missed_in_vocab": rounds.missed_in_vocab,
    }
    for name, column in values.items():
        columns[name].extend(column)


def _check_one_answer(states: SequenceStates, chain: ChainHits) -> None:
    """A row is one generated turn: its anchors follow each other up to the last token but one."""
    end = len(states.token_ids) - 2
    if chain.anchors.tolist() != list(range(end - len(chain.anchors), end)):
        raise ArtifactError(
            "the loss mask is not one run up to the end of the row",
            where=f"data/hidden, sequence {states.sequence_id}",
            hint="run `dvc repro reassemble`",
        )
