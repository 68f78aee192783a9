"""Scores of sampled tokens: exact expectations over all tokens of small vocabularies, and z over many samples."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
import torch

from eyas.extract.sampled import SampledScores, score
from eyas.sampling import Sampling
from tests.extract.drawing import sampling_probabilities

SAMPLINGS = [
    pytest.param(Sampling("vllm", 1.0, 1.0, 0), id="plain"),
    pytest.param(Sampling("vllm", 0.7, 1.0, 0), id="cool"),
    pytest.param(Sampling("vllm", 1.5, 1.0, 0), id="hot"),
    pytest.param(Sampling("vllm", 0.8, 0.9, 0), id="top_p"),
    pytest.param(Sampling("vllm", 1.0, 1.0, 7), id="top_k"),
    pytest.param(Sampling("vllm", 0.7, 0.9, 10), id="both"),
    pytest.param(Sampling("sglang", 0.7, 0.9, 10), id="both at once"),
    pytest.param(Sampling("vllm", 1.0, 0.3, 0), id="often one token left"),
    pytest.param(Sampling("vllm", 1.0, 0.95, 10**6), id="top_k above the vocabulary"),
]
Array = npt.NDArray[np.float64]


def logits_of(rows: int, vocab: int, spread: float = 2.0) -> torch.Tensor:
    return spread * torch.randn(rows, vocab, generator=torch.Generator().manual_seed(3))


def all_scores(row: torch.Tensor, sampling: Sampling) -> SampledScores:
    """Every token of the vocabulary as if it had been sampled."""
    vocab = len(row)
    return score(row.expand(vocab, vocab).clone(), torch.arange(vocab), sampling)


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_expectations_over_all_tokens(sampling: Sampling) -> None:
    """E[excess] = 0, E[excess^2] = varentropy, and the factors of the evidence have expectation 1 or less."""
    for row in logits_of(5, 60):
        p = sampling_probabilities(row.double().numpy(), sampling)
        scores = all_scores(row, sampling)
        assert scores.outside.tolist() == (p == 0).tolist()
        excess, varentropy = scores.excess.double().numpy(), scores.varentropy.double().numpy()
        kept = p > 0
        surprise = -np.log(p[kept])
        entropy = float((p[kept] * surprise).sum())
        np.testing.assert_allclose(excess[kept], surprise - entropy, atol=1e-5)
        np.testing.assert_allclose(varentropy[kept], (p[kept] * (surprise - entropy) ** 2).sum(), atol=1e-5)
        assert abs(float((p * excess).sum())) < 1e-5
        factor = float((p * np.exp(scores.evidence.double().numpy())).sum())
        untruncated = sampling.top_p == 1 and sampling.top_k == 0
        assert factor == pytest.approx(1.0, abs=1e-5) if untruncated else factor <= 1 + 1e-6


def test_the_evidence_is_that_of_the_module_s_formula() -> None:
    row = logits_of(1, 40)[0]
    p = np.exp(row.double().numpy() / 0.8)
    p /= p.sum()
    expected = -np.log(p) / 2 - np.log(np.sqrt(p).sum())
    np.testing.assert_allclose(all_scores(row, Sampling("vllm", 0.8, 0.5, 3)).evidence, expected, atol=1e-5)


def test_top_p_counts_what_top_k_leaves_or_all() -> None:
    """Probabilities 0.5, 0.3, 0.1, 0.1: half of the first two's 0.8 is the first alone; half of 1 is the first too;
    but 0.6 of the whole needs two, and 0.6 of 0.8 one."""
    row = torch.tensor([0.5, 0.3, 0.1, 0.1]).log()
    after = all_scores(row, Sampling("vllm", 1.0, 0.6, 2))
    at_once = all_scores(row, Sampling("sglang-generate", 1.0, 0.6, 2))
    assert after.outside.tolist() == [False, True, True, True]
    assert at_once.outside.tolist() == [False, False, True, True]


def test_ties_at_the_border_of_top_k_are_kept() -> None:
    row = torch.tensor([3.0, 2.0, 2.0, 2.0, 1.0])
    scores = all_scores(row, Sampling("vllm", 1.0, 1.0, 2))
    assert scores.outside.tolist() == [False, False, False, False, True]
    p = np.exp([3.0, 2.0, 2.0, 2.0])
    p /= p.sum()
    entropy = float(-(p * np.log(p)).sum())
    np.testing.assert_allclose(scores.excess[:4], -np.log(p) - entropy, atol=1e-6)


def test_certain_tokens_say_nothing() -> None:
    row = torch.full((50,), -40.0)
    row[7] = 40.0
    scores = score(row[None].clone(), torch.tensor([7]), Sampling("vllm", 0.7, 1.0, 0))
    assert (scores.excess.item(), scores.varentropy.item(), scores.evidence.item()) == (0.0, 0.0, 0.0)
    one_left = all_scores(torch.tensor([2.0, 1.0, 0.0]), Sampling("vllm", 1.0, 0.1, 0))
    assert one_left.varentropy.tolist() == [0.0, 0.0, 0.0]
    assert one_left.outside.tolist() == [False, True, True]


@pytest.mark.parametrize("top_k", [0, 900])
def test_wide_and_flat_distributions(top_k: int) -> None:
    """More tokens are kept than are looked at first, in some rows only."""
    logits = torch.cat([logits_of(2, 9000, spread=0.3), logits_of(2, 9000, spread=6.0)])
    sampling = Sampling("vllm", 1.0, 0.95, top_k)
    tokens = torch.tensor([1, 2, 3, 4])
    scores = score(logits.clone(), tokens, sampling)
    for number, row in enumerate(logits.double().numpy()):
        p = sampling_probabilities(row, sampling)
        kept = p[p > 0]
        entropy = float(-(kept * np.log(kept)).sum())
        token = int(tokens[number])
        assert bool(scores.outside[number]) == (p[token] == 0)
        if p[token] > 0:
            assert scores.excess[number].item() == pytest.approx(-np.log(p[token]) - entropy, abs=1e-3)
            expected = float((kept * np.log(kept) ** 2).sum()) - entropy**2
            assert scores.varentropy[number].item() == pytest.approx(expected, rel=1e-3)


def test_low_temperatures_are_raised_as_vllm_raises_them() -> None:
    row = logits_of(1, 30)[0]
    low = all_scores(row, Sampling("vllm", 0.001, 1.0, 0))
    assert torch.equal(low.excess, all_scores(row, Sampling("vllm", 0.01, 1.0, 0)).excess)


def z_of(samples: int, tokens: int, sampled: Sampling, judged: Sampling, spread: float = 3.0) -> Array:
    """z of `samples` datasets of `tokens` tokens each, sampled in one way and judged as if in another."""
    random = np.random.default_rng(17)
    logits = logits_of(tokens, 80, spread)
    p = np.stack([sampling_probabilities(row, sampled) for row in logits.double().numpy()])  # [tokens, 80]
    ceiling = p.cumsum(axis=1)
    ceiling[:, -1] = 1.0
    drawn = (random.random((samples, tokens, 1)) > ceiling).sum(axis=2)  # [samples, tokens]
    scores = score(logits.repeat(samples, 1), torch.from_numpy(drawn).flatten(), judged)
    excess = scores.excess.double().view(samples, tokens).sum(1)
    variance = scores.varentropy.double().view(samples, tokens).sum(1)
    return np.asarray((excess / variance.sqrt()).numpy())


@pytest.mark.parametrize("sampling", SAMPLINGS[:7])
def test_z_is_standard_normal(sampling: Sampling) -> None:
    z = z_of(samples=600, tokens=200, sampled=sampling, judged=sampling)
    assert abs(z.mean()) < 4 / np.sqrt(600)
    assert z.std() == pytest.approx(1.0, abs=4 / np.sqrt(2 * 600))
    assert (abs(z) > 2).mean() == pytest.approx(0.0455, abs=4 * np.sqrt(0.0455 / 600))
    assert abs(z).max() < 4.5


@pytest.mark.parametrize(
    ("judged", "direction"),
    [
        pytest.param(Sampling("vllm", 1.0, 1.0, 0), -1, id="hotter"),
        pytest.param(Sampling("vllm", 0.5, 1.0, 0), 1, id="cooler"),
    ],
)
def test_another_temperature_shifts_z(judged: Sampling, direction: int) -> None:
    z = z_of(samples=20, tokens=2000, sampled=Sampling("vllm", 0.7, 1.0, 0), judged=judged)
    assert (direction * z).min() > 8


@pytest.mark.parametrize("sampling", SAMPLINGS[:6])
def test_tokens_that_do_not_exist(sampling: Sampling) -> None:
    """Their logits are -inf: they change nothing, and one of them as an answer is a finite amount of surprise."""
    logits = logits_of(1, 50)
    padded = torch.cat([logits, torch.full((1, 14), -torch.inf)], dim=1)
    scores = score(padded.clone(), torch.tensor([7]), sampling)
    expected = score(logits.clone(), torch.tensor([7]), sampling)
    for name in ("excess", "varentropy", "evidence"):
        torch.testing.assert_close(getattr(scores, name), getattr(expected, name), rtol=1e-5, atol=1e-5)
    impossible = score(padded.clone(), torch.tensor([60]), sampling)
    assert 1000 < impossible.evidence.item() < 1e5
    assert torch.isfinite(impossible.excess).all()


def test_parts_are_cut_and_joined_in_order() -> None:
    logits, tokens = logits_of(10, 50), torch.arange(10)
    sampling = Sampling("vllm", 1.0, 0.8, 0)
    whole = score(logits.clone(), tokens, sampling)
    parts = [score(a.clone(), b, sampling) for a, b in zip(logits.split(3), tokens.split(3), strict=True)]
    joined = SampledScores.cat(parts)
    for name in ("excess", "varentropy", "evidence", "outside"):
        assert torch.equal(getattr(joined, name), getattr(whole, name))
        assert torch.equal(getattr(whole.split([4, 6])[1], name), getattr(whole, name)[4:])
