from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from eyas.drafter import rules
from eyas.drafter.batch import DraftBatch, pack
from eyas.drafter.chains import replay_chains
from eyas.drafter.rules import GreedyRule, Judged, SampledRule
from eyas.drafter.vocab import VocabMap
from eyas.sampling import GREEDY, Sampling
from eyas.shards import SequenceStates
from eyas.target.model import TargetHead

from .conftest import HIDDEN, VOCAB, make_drafter, make_states, make_vocab

STEPS = 3
SAMPLINGS = [
    Sampling("vllm", 0.7, 1.0, 0),
    Sampling("vllm", 1.0, 1.0, 4),
    Sampling("vllm", 1.3, 0.6, 0),
    Sampling("vllm", 0.8, 0.7, 6),
    Sampling("sglang", 0.8, 0.7, 6),
    Sampling("vllm", 0.001, 1.0, 0),
]

Array = NDArray[np.float64]


def make_head(seed: int = 0) -> TargetHead:
    generator = torch.Generator().manual_seed(seed)
    return TargetHead(
        embedding=torch.randn(VOCAB, HIDDEN, generator=generator),
        norm_weight=torch.rand(HIDDEN, generator=generator) + 0.5,
        lm_head=torch.randn(VOCAB, HIDDEN, generator=generator) * 0.5,
        eps=1e-5,
    )


def softmax(logits: Array) -> Array:
    powers = np.exp(logits - logits.max())
    return np.asarray(powers / powers.sum())


def sampled_from(head: TargetHead, last: Tensor, sampling: Sampling) -> Array:
    """[V]: probabilities as vLLM (or SGLang) makes them, with the whole vocabulary sorted."""
    state = last.double().numpy()
    state = state / np.sqrt(np.mean(state**2) + head.eps) * head.norm_weight.double().numpy()
    probabilities = softmax(state @ head.lm_head.double().numpy().T / max(sampling.temperature, 0.01))
    order = np.argsort(-probabilities)
    kept = order[: sampling.top_k] if sampling.top_k else order
    mass = probabilities[order if sampling.joint else kept].sum()
    above = np.concatenate(([0.0], np.cumsum(probabilities[kept])[:-1]))
    kept = kept[above < sampling.top_p * mass]
    result = np.zeros(VOCAB)
    result[kept] = probabilities[kept] / probabilities[kept].sum()
    return result


@dataclasses.dataclass
class Case:
    states: list[SequenceStates]
    batch: DraftBatch
    hidden: list[Tensor]
    lm_head: Tensor
    vocab: VocabMap

    def judged(self, rule: GreedyRule | SampledRule) -> list[Judged]:
        judge = rule.judge(self.batch, self.vocab)
        rows = torch.arange(len(self.batch.anchors))
        return [judge(step, rows, hidden, self.lm_head) for step, hidden in enumerate(self.hidden)]


def make_case() -> Case:
    """Random hidden states of the drafter, half of them near the target's, so that p and q resemble each other."""
    head, vocab = make_head(), make_vocab()
    states = [make_states(3, 9, seed=1, name="d:1"), make_states(2, 5, seed=2, name="d:2")]
    states = [dataclasses.replace(each, last=each.last.float(), aux=each.aux.float()) for each in states]
    batch = pack(states, STEPS)
    generator = torch.Generator().manual_seed(7)
    hidden = []
    for step in range(STEPS):
        near = head.normed(batch.last[batch.step_labels[:, step]])
        hidden.append(near + torch.randn(near.shape, generator=generator))
    return Case(states, batch, hidden, head.lm_head[vocab.draft_ids].clone(), vocab)


@pytest.mark.parametrize("drafting", ["greedy", "probabilistic"])
@pytest.mark.parametrize("sampling", SAMPLINGS, ids=lambda each: f"{each.dialect} {each}")
@pytest.mark.parametrize("rows", [1, 1024])
def test_acceptance_follows_from_p_and_q(
    sampling: Sampling, drafting: str, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rules, "ROWS", rows)
    monkeypatch.setattr(rules, "ROW_BYTES", 4 * VOCAB * rows)
    case, head = make_case(), make_head()
    draft_ids = case.vocab.draft_ids.numpy()
    for step, judged in enumerate(case.judged(SampledRule(head, sampling, drafting))):
        for anchor in torch.nonzero(case.batch.step_valid[:, step]).flatten().tolist():
            p = sampled_from(head, case.batch.last[case.batch.step_labels[anchor, step]], sampling)
            logits = (case.hidden[step][anchor].double() @ case.lm_head.double().T).numpy()
            q = np.zeros(VOCAB)
            if drafting == "greedy":
                q[draft_ids[logits.argmax()]] = 1.0
            else:
                q[draft_ids] = softmax(logits / max(sampling.temperature, 0.01))
            x = int(case.batch.step_next[anchor, step])
            assert judged.proposals[anchor] == draft_ids[logits.argmax()]
            assert float(judged.expected[anchor]) == pytest.approx(np.minimum(p, q).sum(), abs=2e-4)
            if p[x] > 0 or drafting == "greedy":
                follow = float(judged.follow[anchor])
                assert follow == pytest.approx(min(1.0, q[x] / max(p[x], 1e-30)), abs=2e-4, rel=1e-3)


def test_follow_has_the_mean_that_is_expected() -> None:
    """Over the tokens that the target may say, weighted by their probability."""
    case, head, sampling = make_case(), make_head(), SAMPLINGS[0]
    for drafting in rules.DRAFTINGS:
        expected = case.judged(SampledRule(head, sampling, drafting))[0].expected
        mean = torch.zeros_like(expected)
        for token in range(VOCAB):
            other = dataclasses.replace(case.batch, step_next=torch.full_like(case.batch.step_next, token))
            chance = [
                sampled_from(head, case.batch.last[label], sampling)[token]
                for label in case.batch.step_labels[:, 0].tolist()
            ]
            follow = (
                dataclasses.replace(case, batch=other).judged(SampledRule(head, sampling, drafting))[0].follow
            )
            mean += torch.tensor(chance, dtype=torch.float32) * follow
        assert torch.allclose(mean, expected, atol=1e-4), drafting


def test_the_greedy_rule_wants_the_argmax_and_the_stored_token() -> None:
    case = make_case()
    hidden = case.hidden[0]
    proposals = case.vocab.to_target((hidden @ case.lm_head.T).argmax(dim=-1))
    following = proposals.clone()
    following[::2] = (following[::2] + 1) % VOCAB
    for agrees in (True, False):
        said = following if agrees else (following + 1) % VOCAB
        argmax = case.batch.argmax.clone()
        argmax[case.batch.step_labels[:, 0]] = said
        step_next = case.batch.step_next.clone()
        step_next[:, 0] = following
        batch = dataclasses.replace(case.batch, argmax=argmax, step_next=step_next)
        judged = dataclasses.replace(case, batch=batch).judged(GreedyRule())[0]
        assert torch.equal(judged.follow.bool(), (proposals == following) & agrees)
        assert torch.equal(judged.follow, judged.expected)


def test_a_rule_that_makes_no_sense_is_refused() -> None:
    with pytest.raises(ValueError, match="greedy"):
        SampledRule(make_head(), GREEDY)
    with pytest.raises(ValueError, match="drafting typical"):
        SampledRule(make_head(), SAMPLINGS[0], "typical")


def test_sampled_chains_of_a_batch_equal_those_alone(embedding: Tensor) -> None:
    drafter, vocab = make_drafter().float(), make_vocab()
    rule = SampledRule(make_head(), SAMPLINGS[3], "probabilistic")
    states = [make_states(3, 6, seed=1), make_states(4, 1, seed=2), make_states(2, 9, seed=3)]
    states = [dataclasses.replace(each, last=each.last.float(), aux=each.aux.float()) for each in states]
    table = embedding.float()
    together = list(replay_chains(drafter, vocab, states, table, STEPS, rule))
    assert len(together[1].anchors) == 0
    for each, chain in zip(states, together, strict=True):
        alone = next(replay_chains(drafter, vocab, [each], table, STEPS, rule))
        assert torch.allclose(alone.follow, chain.follow, atol=1e-5)
        assert torch.allclose(alone.expected, chain.expected, atol=1e-5)
        beyond = torch.arange(len(chain.anchors)).unsqueeze(1) + torch.arange(STEPS) >= len(chain.anchors)
        assert not chain.follow[beyond].any()
        assert not chain.expected[beyond].any()
        assert len(chain.anchors) == 0 or (chain.expected[~beyond] > 0).any()
