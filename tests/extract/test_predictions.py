from __future__ import annotations

import pytest
import torch
from torch import Tensor

from eyas.extract import predictions as module
from eyas.extract.predictions import predict
from eyas.sampling import Sampling
from eyas.target.model import TargetHead

VOCAB, HIDDEN, ROWS = 301, 16, 37
SAMPLED = Sampling("vllm", 1.0, 1.0, 0)


def head_of(dtype: torch.dtype = torch.float32) -> TargetHead:
    random = torch.Generator().manual_seed(0)
    weight = torch.randn(VOCAB, HIDDEN, generator=random).to(dtype)
    return TargetHead(weight, torch.rand(HIDDEN, generator=random).to(dtype), weight, 1e-5)


def states() -> Tensor:
    return torch.randn(ROWS, HIDDEN, generator=torch.Generator().manual_seed(1))


def following() -> Tensor:
    """Among them the first and the last token, and some argmaxes."""
    tokens = torch.randint(0, VOCAB, (ROWS,), generator=torch.Generator().manual_seed(2))
    tokens[0], tokens[1] = 0, VOCAB - 1
    tokens[2:6] = head_of().logits(states()).argmax(dim=-1)[2:6]
    return tokens


@pytest.mark.parametrize("rows", [1, 8, 512])
@pytest.mark.parametrize("block", [1, 50, 301, 1000])
def test_blocks_decide_nothing(rows: int, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Against logits of the whole vocabulary in float64."""
    monkeypatch.setattr(module, "ROWS", rows)
    monkeypatch.setattr(module, "CPU_BLOCK_BYTES", 4 * min(rows, ROWS) * block)
    found = predict(head_of(), states(), following())
    logits = head_of().logits(states()).double()
    torch.testing.assert_close(found.logsumexp.double(), logits.exp().sum(-1).log(), rtol=1e-5, atol=1e-5)
    assert found.argmax.tolist() == logits.argmax(-1).tolist()
    margin = logits.amax(-1) - logits[torch.arange(ROWS), following()]
    torch.testing.assert_close(found.margin.double(), margin, rtol=1e-5, atol=1e-5)
    assert (found.margin[2:6] == 0).all()
    assert found.sampled is None


def test_large_logits_do_not_overflow() -> None:
    head = head_of()
    far = TargetHead(head.embedding, head.norm_weight * 1000, head.lm_head, head.eps)
    found = predict(far, states(), following())
    assert float(found.logsumexp.max()) > 1000
    torch.testing.assert_close(found.logsumexp, far.logits(states()).logsumexp(-1), rtol=1e-5, atol=1e-5)


def test_the_first_of_equal_logits_is_the_argmax(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CPU_BLOCK_BYTES", 4 * 2 * 50)
    row = torch.ones(1, HIDDEN)
    head = TargetHead(row.expand(VOCAB, -1), torch.ones(HIDDEN), row.expand(VOCAB, -1), 0.0)
    found = predict(head, torch.ones(2, HIDDEN), torch.tensor([0, 300]))
    assert found.argmax.tolist() == [0, 0]
    assert found.margin.tolist() == [0.0, 0.0]


def test_sampled_answers_get_the_same_and_their_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    greedy = predict(head_of(), states(), following())
    monkeypatch.setattr(module, "ROW_BYTES", 4 * VOCAB * 5)
    found = predict(head_of(), states(), following(), SAMPLED)
    assert found.argmax.tolist() == greedy.argmax.tolist()
    torch.testing.assert_close(found.logsumexp, greedy.logsumexp, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(found.margin, greedy.margin, rtol=1e-5, atol=1e-5)
    assert found.sampled is not None
    logp = head_of().logits(states()).log_softmax(-1)
    surprise = -logp[torch.arange(ROWS), following()]
    entropy = -(logp.exp() * logp).sum(-1)
    torch.testing.assert_close(found.sampled.excess, surprise - entropy, rtol=1e-4, atol=1e-4)


def test_16_bit_heads_give_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CPU_BLOCK_BYTES", 4 * ROWS * 50)
    head = head_of(torch.bfloat16)
    found = predict(head, states().bfloat16(), following())
    logits = head.logits(states().bfloat16()).float()
    assert found.logsumexp.dtype == torch.float32
    torch.testing.assert_close(found.logsumexp, logits.logsumexp(-1), rtol=1e-2, atol=1e-2)


def test_no_positions_and_cuts() -> None:
    nothing = predict(head_of(), states()[:0], following()[:0])
    assert len(nothing.argmax) == len(nothing.logsumexp) == 0
    parts = predict(head_of(), states(), following()).split([30, 0, 7])
    assert [len(part.margin) for part in parts] == [30, 0, 7]
