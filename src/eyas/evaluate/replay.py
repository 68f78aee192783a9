"""Decoding with a drafter, replayed on stored hidden states without the target.

The engine's first draft of an answer starts at slot s-1, s being the first generated token; after a draft of
which `a` tokens were accepted it stands at slot p + a + 1. On greedy data this is exact: accepted tokens equal
the stored ones, so the stored hidden states are those that the engine would have seen. On sampled data it is exact in
distribution: a lossless engine's answers are distributed as the stored ones are (see eyas.drafter.rules).

Shapes: B answers of a batch, P anchors (slots at which a draft can start) of one answer, K draft tokens, D draft rounds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray
from torch import Tensor

from eyas.drafter.chains import GREEDY_RULE, DraftChains, replay_chains
from eyas.drafter.model import Drafter
from eyas.drafter.rules import Rule
from eyas.drafter.vocab import VocabMap
from eyas.errors import ArtifactError
from eyas.evaluate.rounds import Answers, Rounds, rounds_of
from eyas.shards import HiddenStore, SequenceStates

CELLS_PER_BATCH = 1_500_000
"""Anchors x slots of the sequences in one batch."""
TOKENS_PER_BATCH = 16_384
"""Tokens in one batch: times aux layers, hidden size and 4 bytes, the memory of its aux states."""
ANCHORS_PER_BATCH = 8_192
"""Anchors in one batch: times hidden size, draft tokens and 4 bytes, the memory of its draft steps."""

ROUND_SCHEMA = {
    "sequence_id": pl.String,
    "draft_tokens": pl.Int32,
    "position": pl.Int32,
    "context": pl.Int32,
    "kind": pl.UInt8,
    "weight": pl.Float64,
    "accepted": pl.Float64,
    "past_end": pl.Int32,
    "open_end": pl.Float64,
}
"""And at_1 .. at_K, Float64."""

STEP_SCHEMA = {
    "sequence_id": pl.String,
    "draft_tokens": pl.Int32,
    "step": pl.Int32,
    "kind": pl.UInt8,
    "in_vocab": pl.Boolean,
    "judged": pl.Float64,
    "accepted": pl.Float64,
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
    """One row per round and number of draft tokens: sequence_id; draft_tokens k; position of the round in the answer, in
    tokens; context, tokens known before it, prompt and answer; kind (eyas.tokenkinds) of the last of these; weight, how
    often it takes place (1 with a greedy drafter); accepted, expected, 0..k; past_end: drafted tokens beyond the answer's
    end, which can't be judged; open_end: probability that an engine gets to judge those; at_i: probability that at least
    i tokens are accepted, null beyond k."""
    steps: pl.DataFrame
    """What became of the drafted tokens that were judged, summed: sequence_id, draft_tokens, step (from 1), kind of the
    token that the answer has there, in_vocab whether it could be drafted, judged (so many, in expectation), accepted."""
    sequences: pl.DataFrame
    """One row per sequence: sequence_id, labels (tokens that could be drafted), how many of them are in the draft
    vocabulary (labels_in_vocab), and are what the target's argmax says (labels_greedy)."""

    def of(self, sequences: pl.Expr) -> Replay:
        """The part with these sequences; the expression may use columns that all three tables have."""
        tables = (self.rounds, self.steps, self.sequences)
        return Replay(*(table.filter(sequences) for table in tables))


def replay(
    drafter: Drafter,
    vocab: VocabMap,
    store: HiddenStore,
    embedding: Tensor,
    draft_tokens: int,
    rule: Rule = GREEDY_RULE,
    spare: int = 0,
) -> Replay:
    """Replay every sequence of a store with 1..draft_tokens draft tokens.

    Args:
        drafter: with the weights that an engine would load.
        vocab: its draft vocabulary.
        store: hidden states of the sequences.
        embedding: the target's, [V, H].
        draft_tokens: K.
        rule: how drafted tokens are judged.
        spare: last tokens of each answer that only judge drafts; see `rounds_of`.

    Raises:
        ArtifactError: a sequence's loss mask is not one run up to its end.
    """
    parts = [
        _batch([store[place] for place in places], drafter, vocab, embedding, draft_tokens, rule, spare)
        for places in batches(store.lengths, store.label_counts)
    ]
    at = {f"at_{position}": pl.Float64 for position in range(1, draft_tokens + 1)}
    empty = Replay(
        *(pl.DataFrame(schema=schema) for schema in (ROUND_SCHEMA | at, STEP_SCHEMA, SEQUENCE_SCHEMA))
    )
    return Replay(
        rounds=pl.concat([empty.rounds, *(part.rounds for part in parts)]).sort(
            "sequence_id", "draft_tokens", "position"
        ),
        steps=pl.concat([empty.steps, *(part.steps for part in parts)]).sort(
            "sequence_id", "draft_tokens", "step", "kind", "in_vocab"
        ),
        sequences=pl.concat([empty.sequences, *(part.sequences for part in parts)]).sort("sequence_id"),
    )


@dataclass(frozen=True)
class _Labels:
    """The tokens that the drafts of an answer are judged by, one per anchor."""

    context: int
    """Tokens known before the first round."""
    kinds: NDArray[np.uint8]
    """[P + 1]: of the tokens from the first generated one on."""
    in_vocab: NDArray[np.bool_]
    """[P]: the token after anchor p's is in the draft vocabulary."""
    greedy: int
    """How many are the target's argmax."""

    @classmethod
    def of(cls, states: SequenceStates, vocab: VocabMap) -> _Labels:
        following = states.token_ids[states.label_positions.long() + 1]  # [P]
        generated = len(following) + 1
        return cls(
            context=len(states.token_ids) - generated + 1,
            kinds=states.kinds[len(states.kinds) - generated :].numpy(),
            in_vocab=vocab.t2d[following.long()].numpy(),
            greedy=int((states.argmax == following).sum()),
        )


def _batch(
    batch: Sequence[SequenceStates],
    drafter: Drafter,
    vocab: VocabMap,
    embedding: Tensor,
    draft_tokens: int,
    rule: Rule,
    spare: int,
) -> Replay:
    chains = list(replay_chains(drafter, vocab, batch, embedding, draft_tokens, rule))
    for states, chain in zip(batch, chains, strict=True):
        _check_one_answer(states, chain)
    labels = [_Labels.of(states, vocab) for states in batch]
    answers = Answers.of(
        [chain.follow.double().numpy() for chain in chains],
        [chain.expected.double().numpy() for chain in chains],
    )
    ids = pl.Series([states.sequence_id for states in batch])
    rounds = rounds_of(answers, spare)
    return Replay(
        rounds=pl.concat([_round_rows(each, ids, labels, draft_tokens) for each in rounds]),
        steps=pl.concat([_step_rows(each, ids, labels) for each in rounds]),
        sequences=pl.DataFrame(
            {
                "sequence_id": ids,
                "labels": [len(each.in_vocab) for each in labels],
                "labels_in_vocab": [int(each.in_vocab.sum()) for each in labels],
                "labels_greedy": [each.greedy for each in labels],
            },
            schema=SEQUENCE_SCHEMA,
        ),
    )


def _round_rows(rounds: Rounds, ids: pl.Series, labels: Sequence[_Labels], most: int) -> pl.DataFrame:
    """Rows of `Replay.rounds`."""
    context = np.array([each.context for each in labels])
    at = {
        f"at_{place}": rounds.accepted_at[:, place - 1] if place <= rounds.draft_tokens else None
        for place in range(1, most + 1)
    }
    return pl.DataFrame(
        {
            "sequence_id": ids.gather(rounds.answer),
            "draft_tokens": np.full(len(rounds.answer), rounds.draft_tokens),
            "position": rounds.position,
            "context": context[rounds.answer] + rounds.position,
            "kind": _table([each.kinds for each in labels])[rounds.answer, rounds.position],
            "weight": rounds.weight,
            "accepted": rounds.accepted_at.sum(axis=1),
            "past_end": rounds.draft_tokens - rounds.judged,
            "open_end": rounds.open_end,
            **at,
        },
        schema=ROUND_SCHEMA | dict.fromkeys(at, pl.Float64),
    )


def _step_rows(rounds: Rounds, ids: pl.Series, labels: Sequence[_Labels]) -> pl.DataFrame:
    """Rows of `Replay.steps`."""
    row, step = np.nonzero(rounds.reached)
    answer, place = rounds.answer[row], rounds.position[row] + step
    weight = rounds.weight[row]
    table = pl.DataFrame(
        {
            "answer": answer,
            "step": step + 1,
            "kind": _table([each.kinds for each in labels])[answer, place + 1],
            "in_vocab": _table([each.in_vocab for each in labels])[answer, place],
            "judged": weight * rounds.reached[row, step],
            "accepted": weight * rounds.followed[row, step],
        }
    )
    keys = ["answer", "step", "kind", "in_vocab"]
    sums = table.group_by(keys).agg(pl.col("judged", "accepted").sum()).sort(keys)
    return sums.select(
        ids.gather(sums["answer"]).alias("sequence_id"),
        pl.lit(rounds.draft_tokens).alias("draft_tokens"),
        pl.exclude("answer"),
    ).cast(STEP_SCHEMA)  # type: ignore[arg-type]


def _table(rows: Sequence[NDArray[np.uint8]] | Sequence[NDArray[np.bool_]]) -> NDArray[np.generic]:
    """[B, longest] of rows of one type, padded with zeros."""
    result = np.zeros((len(rows), max(map(len, rows))), dtype=rows[0].dtype)
    for place, row in enumerate(rows):
        result[place, : len(row)] = row
    return result


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


def _check_one_answer(states: SequenceStates, chain: DraftChains) -> None:
    """A row is one generated turn: its anchors follow each other up to the last token but one."""
    end = len(states.token_ids) - 2
    if chain.anchors.tolist() != list(range(end - len(chain.anchors), end)):
        raise ArtifactError(
            "the loss mask is not one run up to the end of the row",
            where=f"data/hidden, sequence {states.sequence_id}",
            hint="run `dvc repro reassemble`",
        )
