"""A target whose states hold its last token alone, so that sampled answers are cheap: stored ones against an engine."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from numpy.typing import NDArray
from torch.nn import functional

from eyas import tokenkinds
from eyas.acceptance import AcceptanceCounts
from eyas.drafter.batch import pack
from eyas.drafter.model import Drafter
from eyas.drafter.rules import SampledRule
from eyas.drafter.unroll import unroll
from eyas.evaluate.replay import replay
from eyas.evaluate.tally import count
from eyas.sampling import Sampling
from eyas.shards import SequenceStates
from eyas.target.model import TargetHead
from tests.export.conftest import AUX, HIDDEN, PROFILE, VOCAB, make_drafter, make_vocab
from tests.export.numpy_loader import NumpyDrafter
from tests.export.plain import write_plain

from .engine_walk import Speculation, draft_logits
from .test_replay import EMBEDDING, stored

DRAFT_TOKENS, PROMPT, MOST_TOKENS, END = 3, 3, 14, 2
SAMPLING = Sampling("vllm", 0.7, 0.9, 20)

Array = NDArray[Any]


@dataclass
class Toy:
    """aux [V, A * H] and last [V, H] by token."""

    aux: Array
    last: Array
    head: TargetHead

    @cached_property
    def following(self) -> Array:
        """[V, V]: what follows each token, at the temperature: the 20 most likely, of these the first that hold 0.9."""
        states = self.last.astype(np.float64)
        states = states / np.sqrt(np.mean(states**2, axis=1, keepdims=True) + self.head.eps)
        logits = states * self.head.norm_weight.double().numpy() @ self.head.lm_head.double().numpy().T / 0.7
        result = np.zeros((VOCAB, VOCAB))
        for token, row in enumerate(logits):
            p = np.exp(row - row.max())
            order = np.argsort(-p)[:20]
            above = np.concatenate(([0.0], np.cumsum(p[order])[:-1]))
            kept = order[above < 0.9 * p[order].sum()]
            result[token, kept] = p[kept] / p[kept].sum()
        return result


def make_toy() -> Toy:
    """Behind each token one other is likely, mostly one that can be drafted."""
    random = np.random.default_rng(11)
    aux = random.normal(size=(VOCAB, AUX * HIDDEN)).astype(np.float32)
    lm_head = random.normal(size=(VOCAB, HIDDEN)).astype(np.float32)
    likely = random.choice(make_vocab().draft_ids.numpy(), size=VOCAB)
    likely[::7] = random.integers(5, VOCAB, size=len(likely[::7]))
    last = (1.2 * lm_head[likely] + 0.5 * random.normal(size=(VOCAB, HIDDEN))).astype(np.float32)
    head = TargetHead(
        torch.from_numpy(EMBEDDING), torch.full((HIDDEN,), 0.5), torch.from_numpy(lm_head), 1e-5
    )
    return Toy(aux, last, head)


@pytest.fixture(scope="module")
def toy() -> Toy:
    return make_toy()


@pytest.fixture(scope="module")
def trained(toy: Toy) -> Drafter:
    """A drafter that has seen some answers."""
    drafter, vocab = make_drafter(), make_vocab()
    speculation = Speculation(0.7, "greedy", seed=3)
    batch = pack([sampled_states(toy, speculation, f"t:{number}") for number in range(40)], DRAFT_TOKENS)
    labels = vocab.to_draft(batch.step_next)  # [P, S]
    optimizer = torch.optim.Adam(drafter.parameters(), lr=2e-2)
    for _ in range(25):
        optimizer.zero_grad()
        rows = [batch.step_valid[:, step] & (labels[:, step] >= 0) for step in range(DRAFT_TOKENS)]
        steps = unroll(drafter, batch, toy.head.embedding, DRAFT_TOKENS)
        losses = [
            functional.cross_entropy(drafter.logits(output[kept]), labels[kept, step])
            for step, (output, kept) in enumerate(zip(steps, rows, strict=True))
        ]
        torch.stack(losses).sum().backward()
        optimizer.step()
    return drafter.eval()


def sampled_states(toy: Toy, speculation: Speculation, name: str) -> SequenceStates:
    tokens = [*speculation.random.integers(5, VOCAB, size=PROMPT).tolist()]
    while len(tokens) < PROMPT + MOST_TOKENS and (len(tokens) == PROMPT or tokens[-1] != END):
        tokens.append(speculation.sample(toy.following[tokens[-1]]))
    ids = torch.tensor(tokens, dtype=torch.int32)
    labels = torch.arange(PROMPT, len(ids) - 1, dtype=torch.int32)
    last = torch.from_numpy(toy.last[tokens])[labels.long()]
    return SequenceStates(
        sequence_id=name,
        token_ids=ids,
        kinds=(torch.arange(len(ids)) >= PROMPT).to(torch.uint8) * tokenkinds.ANSWER,
        weight=1.0,
        aux=torch.from_numpy(toy.aux[tokens]).unflatten(1, (AUX, HIDDEN)),
        label_positions=labels,
        last=last,
        argmax=toy.head.logits(last).argmax(dim=-1).int(),
        logsumexp=toy.head.logits(last).logsumexp(dim=-1),
    )


def serve(toy: Toy, engine: NumpyDrafter, speculation: Speculation, answers: int) -> AcceptanceCounts:
    """What an engine accepts within its answers."""
    drafts, accepted_at = 0, [0] * DRAFT_TOKENS
    for _ in range(answers):
        tokens = speculation.random.integers(5, VOCAB, size=PROMPT).tolist()
        tokens.append(speculation.sample(toy.following[tokens[-1]]))
        while len(tokens) < PROMPT + MOST_TOKENS and tokens[-1] != END:
            drafts += 1
            proposals: list[int] = []

            def choose(logits: Array, into: list[int] = proposals) -> int:
                into.append(speculation.sample(speculation.drafted(logits)))
                return into[-1]

            rows = draft_logits(engine, tokens, toy.aux[tokens[:-1]], DRAFT_TOKENS, choose)
            for place, (proposal, logits) in enumerate(zip(proposals, rows, strict=True)):
                tokens.append(
                    speculation.judge(proposal, toy.following[tokens[-1]], speculation.drafted(logits))
                )
                if tokens[-1] != proposal:
                    break
                accepted_at[place] += 1
                if tokens[-1] == END or len(tokens) == PROMPT + MOST_TOKENS:
                    break
            else:
                tokens.append(speculation.sample(toy.following[tokens[-1]]))
    return AcceptanceCounts(drafts, [*accepted_at])


@pytest.mark.parametrize("drafting", ["greedy", "probabilistic"])
def test_stored_samples_predict_what_a_sampling_engine_accepts(
    toy: Toy, trained: Drafter, tmp_path: Path, drafting: str
) -> None:
    vocab = make_vocab()
    write_plain(tmp_path, trained, vocab, PROFILE, "float32")
    engine = NumpyDrafter(tmp_path, EMBEDDING.astype(np.float64))
    speculation = Speculation(0.7, "greedy", seed=1)
    store = stored(
        tmp_path / "hidden", [sampled_states(toy, speculation, f"d:{number:04}") for number in range(200)]
    )
    rule = SampledRule(toy.head, SAMPLING, drafting)
    rounds = replay(trained, vocab, store, torch.from_numpy(EMBEDDING), DRAFT_TOKENS, rule).rounds
    simulated = count(rounds.filter(pl.col("draft_tokens") == DRAFT_TOKENS), DRAFT_TOKENS)
    measured = serve(toy, engine, Speculation(0.7, drafting, seed=2), answers=140)
    for ours, theirs in zip(simulated.rates, measured.rates, strict=True):
        assert ours is not None
        assert theirs is not None
        error = np.sqrt(ours * (1 - ours) * (1 / simulated.drafts + 1 / measured.drafts))
        assert abs(ours - theirs) < 4 * error
        assert ours > 6 * error  # else the test could not tell a rate from none
