from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch

from eyas import tokenkinds
from eyas.errors import ArtifactError
from eyas.evaluate import replay as replay_module
from eyas.evaluate.replay import batches, replay
from eyas.evaluate.tally import count, count_at_most
from eyas.shards import HiddenStore, SequenceStates, ShardWriter, StoreMeta
from tests.export.conftest import AUX, HIDDEN, PROFILE, VOCAB, make_drafter, make_vocab
from tests.export.numpy_loader import NumpyDrafter
from tests.export.plain import write_plain

from .engine_walk import decode, draft

DRAFT_TOKENS = 8
EMBEDDING = np.random.default_rng(5).normal(size=(VOCAB, HIDDEN)).astype(np.float32)
FLAGS: list[dict[str, bool]] = [
    {},
    {"norm_before_fc": True, "norm_before_residual": True, "norm_output": True},
    {"fc_norm": True, "norm_output": True},
]


def answered(engine: NumpyDrafter, prompt: int, generated: int, seed: int) -> SequenceStates:
    """A greedy answer that agrees with drafts of length 0 to 8, in turn."""
    rng = np.random.default_rng(seed)
    aux = rng.normal(size=(prompt + generated, AUX, HIDDEN)).astype(np.float32)
    tokens = rng.integers(0, VOCAB, size=prompt + 1).tolist()
    turn = seed
    while len(tokens) < prompt + generated:
        agree = (2, 0, 8, 1, 5)[turn % 5]
        turn += 1
        flat = aux[: len(tokens) - 1].reshape(len(tokens) - 1, -1).astype(np.float64)
        tokens += [*draft(engine, tokens, flat, agree), int(rng.integers(0, VOCAB))]
    ids = torch.tensor(tokens[: prompt + generated], dtype=torch.int32)
    labels = torch.arange(prompt, len(ids) - 1, dtype=torch.int32)
    return SequenceStates(
        sequence_id=f"d{seed % 2}:{seed}",
        token_ids=ids,
        kinds=(torch.arange(len(ids)) >= prompt).to(torch.uint8) * tokenkinds.ANSWER,
        weight=1.0,
        aux=torch.from_numpy(aux),
        label_positions=labels,
        last=torch.zeros(len(labels), HIDDEN),
        argmax=ids[labels.long() + 1],
        logsumexp=torch.zeros(len(labels)),
    )


def stored(directory: Path, sequences: list[SequenceStates]) -> HiddenStore:
    meta = StoreMeta(
        target_digest=PROFILE.digest,
        target_name=PROFILE.name,
        target_revision=PROFILE.revision,
        source_digest="sequences",
        dtype="float32",
        aux_layer_ids=PROFILE.aux_layer_ids,
        backend="test",
        versions={},
    )
    writer = ShardWriter(directory, meta, shard_bytes=20_000)
    for states in sequences:
        writer.add(states)
    writer.close()
    return HiddenStore(directory)


@pytest.mark.parametrize("flags", FLAGS, ids=lambda flags: "+".join(flags) or "plain")
def test_counts_equal_those_of_an_engine_that_feeds_its_own_proposals(
    tmp_path: Path, flags: dict[str, bool]
) -> None:
    drafter, vocab = make_drafter(**flags), make_vocab()
    write_plain(tmp_path, drafter, vocab, PROFILE, "float32")
    engine = NumpyDrafter(tmp_path, EMBEDDING.astype(np.float64))
    sizes = [(3, 14), (5, 9), (2, 1), (4, 2), (6, 27), (3, 22)]
    sequences = [answered(engine, *size, seed) for seed, size in enumerate(sizes)]
    store = stored(tmp_path / "hidden", sequences)
    replayed = replay(drafter, vocab, store, torch.from_numpy(EMBEDDING), DRAFT_TOKENS)
    for draft_tokens in range(1, DRAFT_TOKENS + 1):
        rounds = replayed.rounds.filter(pl.col("draft_tokens") == draft_tokens)
        for states in sequences:
            prompt = int((~states.loss_mask).sum())
            flat = states.aux.flatten(1).numpy().astype(np.float64)
            expected = decode(engine, states.token_ids.tolist(), flat, prompt, draft_tokens)
            own = rounds.filter(pl.col("sequence_id") == states.sequence_id).sort("position")
            assert own["position"].to_list() == expected.positions
            assert own["accepted"].to_list() == expected.accepted
            assert own["past_end"].sum() == expected.past_end
            kept = vocab.t2d[expected.missed]
            missed = replayed.steps.filter(
                pl.col("sequence_id") == states.sequence_id, pl.col("draft_tokens") == draft_tokens
            ).with_columns(missed=pl.col("judged") - pl.col("accepted"))
            assert missed.filter("in_vocab")["missed"].sum() == kept.sum()
            assert missed.filter(~pl.col("in_vocab"))["missed"].sum() == (~kept).sum()
            counts = count(own, draft_tokens)
            assert (counts.drafts, counts.accepted_at) == (expected.drafts, expected.accepted_at)
    reached = replayed.rounds["accepted"].unique().to_list()
    assert set(reached) >= {0, 1, 2, 5, 8}  # the test means nothing unless short and long ones occur


@pytest.mark.parametrize("cut", [0, 1, 3])
def test_spare_tokens_judge_what_an_engine_drafts_behind_the_tokens_asked_for(
    tmp_path: Path, cut: int
) -> None:
    """An engine counts what it accepts behind the last token that was asked for; with spare tokens so do we."""
    drafter, vocab = make_drafter(), make_vocab()
    write_plain(tmp_path, drafter, vocab, PROFILE, "float32")
    engine = NumpyDrafter(tmp_path, EMBEDDING.astype(np.float64))
    sequences = [answered(engine, 3 + seed, 4 + 3 * seed, seed) for seed in range(6)]
    store = stored(tmp_path / "hidden", sequences)
    replayed = replay(drafter, vocab, store, torch.from_numpy(EMBEDDING), 3, spare=cut)
    for draft_tokens in range(1, 4):
        rounds = replayed.rounds.filter(pl.col("draft_tokens") == draft_tokens)
        for states in sequences:
            prompt = int((~states.loss_mask).sum())
            flat = states.aux.flatten(1).numpy().astype(np.float64)
            tokens = states.token_ids.tolist()
            expected = decode(engine, tokens, flat, prompt, draft_tokens, asked=len(tokens) - prompt - cut)
            own = rounds.filter(pl.col("sequence_id") == states.sequence_id)
            assert (own["position"].to_list(), own["past_end"].sum()) == (
                expected.positions,
                expected.past_end,
            )
            assert count(own, draft_tokens).accepted_at == expected.accepted_at
            if cut >= draft_tokens:
                assert count_at_most(own, draft_tokens) == count(own, draft_tokens)


def test_rounds_know_where_they_are(tmp_path: Path) -> None:
    drafter, vocab = make_drafter(), make_vocab()
    write_plain(tmp_path, drafter, vocab, PROFILE, "float32")
    states = answered(NumpyDrafter(tmp_path, EMBEDDING.astype(np.float64)), 5, 12, 2)
    kinds = states.kinds.clone()
    kinds[5:9], kinds[-1] = tokenkinds.REASONING, tokenkinds.END_OF_TURN
    marked = replace(states, kinds=kinds)
    replayed = replay(drafter, vocab, stored(tmp_path / "hidden", [marked]), torch.from_numpy(EMBEDDING), 2)
    rounds = replayed.rounds.filter(pl.col("draft_tokens") == 2)
    assert (
        rounds["context"].to_list() == (rounds["position"] + 6).to_list()
    )  # the prompt and the first token are known
    assert rounds["kind"].to_list() == [int(kinds[5 + place]) for place in rounds["position"]]
    judged: dict[int, float] = {}
    for position, accepted, past_end in rounds.select("position", "accepted", "past_end").iter_rows():
        for step in range(int(min(accepted + 1, 2 - past_end))):
            kind = int(kinds[5 + position + 1 + step])
            judged[kind] = judged.get(kind, 0) + 1
    steps = replayed.steps.filter(pl.col("draft_tokens") == 2).group_by("kind").agg(pl.col("judged").sum())
    assert dict(steps.iter_rows()) == judged
    assert set(judged) == {tokenkinds.REASONING, tokenkinds.ANSWER, tokenkinds.END_OF_TURN}


def test_batches_hold_every_sequence_once_within_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay_module, "CELLS_PER_BATCH", 1000)
    lengths = [30, 5, 90, 12, 8, 31, 7, 40]
    labels = [10, 4, 60, 6, 2, 15, 5, 20]
    found = list(batches(lengths, labels))
    assert sorted(place for batch in found for place in batch) == list(range(8))
    for batch in found:
        cells = len(batch) * max(labels[place] for place in batch) * max(lengths[place] for place in batch)
        assert len(batch) == 1 or cells <= 1000
    assert [2] in found  # too long for any company


def test_short_answers_fill_a_batch_by_tokens_and_anchors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay_module, "TOKENS_PER_BATCH", 100)
    assert [len(batch) for batch in batches([10] * 25, [1] * 25)] == [10, 10, 5]
    monkeypatch.setattr(replay_module, "ANCHORS_PER_BATCH", 16)
    assert [len(batch) for batch in batches([10] * 5, [8] * 5)] == [2, 2, 1]


def test_batch_size_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drafter, vocab = make_drafter(), make_vocab()
    write_plain(tmp_path, drafter, vocab, PROFILE, "float32")
    engine = NumpyDrafter(tmp_path, EMBEDDING.astype(np.float64))
    store = stored(tmp_path / "hidden", [answered(engine, 3 + seed, 8 + seed, seed) for seed in range(5)])
    together = replay(drafter, vocab, store, torch.from_numpy(EMBEDDING), 2)
    monkeypatch.setattr(replay_module, "CELLS_PER_BATCH", 1)
    alone = replay(drafter, vocab, store, torch.from_numpy(EMBEDDING), 2)
    assert together.rounds.equals(alone.rounds, null_equal=True)
    assert together.steps.equals(alone.steps)


def test_a_mask_that_ends_early_is_refused(tmp_path: Path) -> None:
    drafter, vocab = make_drafter(), make_vocab()
    write_plain(tmp_path, drafter, vocab, PROFILE, "float32")
    whole = answered(NumpyDrafter(tmp_path, EMBEDDING.astype(np.float64)), 3, 9, 0)
    kinds = whole.kinds.clone()
    kinds[-1] = tokenkinds.PROMPT
    labels = whole.label_positions[:-1]
    cut = SequenceStates(
        whole.sequence_id,
        whole.token_ids,
        kinds,
        whole.weight,
        whole.aux,
        labels,
        whole.last[:-1],
        whole.argmax[:-1],
        whole.logsumexp[:-1],
    )
    with pytest.raises(ArtifactError, match="not one run up to the end"):
        replay(drafter, vocab, stored(tmp_path / "hidden", [cut]), torch.from_numpy(EMBEDDING), 2)
