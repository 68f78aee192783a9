"""Loss, gradients and counts against whole sequences, padded, every position through every step (reference.py)."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from eyas.drafter import rowloss
from eyas.drafter.batch import pack
from eyas.drafter.loss import DraftTargets, StepScores, score_steps, total_loss, weight_sums
from eyas.drafter.model import Drafter
from eyas.drafter.objective import Objective
from eyas.shards import SequenceStates
from eyas.tokenkinds import ANSWER, END_OF_TURN, NAMES, PROMPT, REASONING

from .conftest import FLAGS, VOCAB, make_drafter, make_states, make_vocab, states_of, target_head
from .reference import FullReference, FullSequence, full_scores

EMBEDDING = torch.randn(VOCAB, 16, generator=torch.Generator().manual_seed(99), dtype=torch.float64)


def row_loss(objective: Objective):
    """Losses as their formulas say, differentiable, from P (not renormalised) and log q."""

    def loss(target: Tensor, log_draft: Tensor) -> Tensor:
        normal = target / target.sum()
        cross = -(normal * log_draft).sum()
        kl = (normal * (normal.log() - log_draft)).sum()
        alpha = torch.minimum(target, log_draft.exp()).sum()
        hybrid = torch.exp(-objective.lk_eta * alpha.detach())
        share = objective.mixture_weight
        return {
            "soft_ce": cross,
            "kl": kl,
            "tv": 1 - alpha,
            "lk": -alpha.log(),
            "lk_hybrid": hybrid * kl + (1 - hybrid) * (1 - alpha),
            "mixture": (1 - share) * cross - share * alpha.log(),
        }[objective.loss]

    return loss


def row_weight(objective: Objective):
    def weight(kind: int, in_vocab: bool) -> float:
        kept = in_vocab or not objective.mask_out_of_vocab
        return objective.kind_weights.get(NAMES[kind], 1.0) * kept

    return weight


def full_sequence(states: SequenceStates) -> FullSequence:
    """With a last hidden state everywhere: those between labels are never read."""
    last = torch.randn(len(states.token_ids), 16, dtype=torch.float64)
    last[states.label_positions.long()] = states.last
    tokens, kinds = states.token_ids.long(), states.kinds.long()
    return FullSequence(tokens, kinds, states.aux, last, states.weight)


def scored(
    drafter: Drafter, sequences: list[SequenceStates], steps: int, objective: Objective, **options: bool
) -> list[StepScores]:
    batch, vocab, dtype = pack(sequences, steps), make_vocab(), drafter.fc.weight.dtype
    rows = target_head()[vocab.draft_ids].to(dtype)
    targets = DraftTargets.of(batch.last.to(dtype), rows, batch.argmax, vocab, batch.logsumexp)
    return score_steps(drafter, batch, targets, EMBEDDING.to(dtype), objective, **options)


def compare(drafter: Drafter, sequences: list[SequenceStates], steps: int, objective: Objective) -> None:
    """Sums, counts and all gradients of our scores and the reference's."""
    weights = {name: value.detach().clone().requires_grad_() for name, value in drafter.named_parameters()}
    reference = FullReference(drafter.config, weights, EMBEDDING, target_head(), make_vocab().draft_ids)
    wanted = full_scores(
        reference,
        [full_sequence(states) for states in sequences],
        steps,
        row_loss(objective),
        row_weight(objective),
        per_sequence=objective.normaliser == "sequence",
    )
    scores = scored(drafter, sequences, steps, objective, measure=True)
    sums = weight_sums(sequences, steps, make_vocab(), objective)
    for step, (score, want) in enumerate(zip(scores, wanted, strict=True)):
        torch.testing.assert_close(score.loss_sum, want.loss, atol=1e-9, rtol=1e-9)
        assert math.isclose(score.weight_sum.item(), want.weight, rel_tol=1e-6)
        assert math.isclose(sums[step].item(), want.weight, rel_tol=1e-6)
        assert (int(score.rows), int(score.hits.sum())) == (want.rows, want.hits)
        assert score.alpha is not None
        assert math.isclose(score.alpha.sum().item(), want.alpha, rel_tol=1e-6, abs_tol=1e-9)
    divisors = [max(want.weight, 1e-300) for want in wanted]
    want_total = torch.stack(
        [objective.step_weight(step) * want.loss / divisors[step] for step, want in enumerate(wanted)]
    ).sum()
    total = total_loss(scores, torch.tensor(divisors, dtype=torch.float64), objective)
    torch.testing.assert_close(total, want_total, atol=1e-9, rtol=1e-9)
    if not total.requires_grad or not want_total.requires_grad:
        return
    want_total.backward()
    drafter.zero_grad()
    total.backward()
    for name, parameter in drafter.named_parameters():
        wanted_gradient = (
            weights[name].grad if weights[name].grad is not None else torch.zeros_like(parameter)
        )
        assert parameter.grad is not None, name
        torch.testing.assert_close(
            parameter.grad, wanted_gradient, atol=1e-8, rtol=1e-7, msg=f"gradient of {name}"
        )


@st.composite
def sequence(draw: st.DrawFn) -> SequenceStates:
    """Mostly a prompt and an answer; sometimes prompt tokens inside, an answer from the first token on, or of one token."""
    prompt = draw(st.integers(0, 6))
    kinds = [PROMPT] * prompt + draw(
        st.lists(st.sampled_from([REASONING, ANSWER, END_OF_TURN]), min_size=1, max_size=9)
    )
    for hole in draw(st.sets(st.integers(0, len(kinds) - 1), max_size=1)):
        kinds[hole] = PROMPT
    seed = draw(st.integers(0, 10_000))
    weight = draw(st.sampled_from([1.0, 0.5, 2.0]))
    return states_of(torch.tensor(kinds, dtype=torch.uint8), seed, f"d:{seed}", weight)


def has_anchor(sequences: list[SequenceStates]) -> bool:
    return any(bool((s.loss_mask[1:-1] & s.loss_mask[2:]).any()) for s in sequences)


objectives = st.builds(
    Objective,
    loss=st.sampled_from(["soft_ce", "kl", "tv", "lk", "lk_hybrid", "mixture"]),
    mixture_weight=st.sampled_from([0.0, 0.3, 1.0]),
    mask_out_of_vocab=st.booleans(),
    step_decay=st.sampled_from([1.0, 0.8]),
    step_weights=st.sampled_from([None, [1.0, 0.0, 0.5, 2.0, 1.0, 1.0, 0.1]]),
    normaliser=st.sampled_from(["token", "sequence"]),
    kind_weights=st.sampled_from([{}, {"answer": 0.25}, {"reasoning": 0.0, "end_of_turn": 3.0}]),
)


@settings(max_examples=40)
@given(
    sequences=st.lists(sequence(), min_size=1, max_size=3).filter(has_anchor),
    steps=st.integers(1, 7),
    objective=objectives,
    flags=st.sampled_from(FLAGS),
    heads=st.sampled_from([(4, 2), (3, 3), (4, 1)]),
    chunk=st.sampled_from([1, 60, 2**21]),
    seed=st.integers(0, 100),
)
def test_loss_and_gradients_equal_the_reference(
    sequences, steps, objective, flags, heads, chunk, seed
) -> None:
    query_heads, kv_heads = heads
    drafter = make_drafter(seed, num_attention_heads=query_heads, num_key_value_heads=kv_heads, **flags)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(rowloss.CHUNK_ELEMENTS, "cpu", chunk)
        compare(drafter, sequences, steps, objective)


@pytest.mark.parametrize("flags", FLAGS, ids=lambda flags: "+".join(flags) or "plain")
def test_every_flag_combination_equals_the_reference(flags) -> None:
    sequences = [make_states(3, 7, seed=1), make_states(2, 4, seed=2), make_states(4, 1, seed=3)]
    compare(make_drafter(**flags), sequences, 3, Objective())


def test_gradients_are_the_same_when_they_are_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch whose logits are too large to keep."""
    monkeypatch.setattr(rowloss, "KEPT_BYTES", 0)
    compare(make_drafter(), [make_states(3, 7, seed=1)], 3, Objective(loss="mixture"))


def test_steps_without_rows_give_zero_and_no_nan() -> None:
    drafter = make_drafter()
    scores = scored(drafter, [make_states(3, 2)], 3, Objective())  # one anchor, one step
    assert [int(score.rows) for score in scores] == [1, 0, 0]
    sums = torch.stack([score.weight_sum for score in scores])
    loss = total_loss(scores, sums, Objective())
    loss.backward()
    assert loss.item() == scores[0].loss_sum.item()
    assert all(torch.isfinite(p.grad).all() for p in drafter.parameters() if p.grad is not None)


def test_parts_of_a_batch_add_up_to_it() -> None:
    """Micro-batches and ranks divide by the sums of the whole optimiser step."""
    sequences = [make_states(3, 7, seed=1), make_states(2, 4, seed=2), make_states(5, 9, seed=3)]
    for normaliser in ("token", "sequence"):
        objective = Objective(normaliser=normaliser, step_decay=0.7)
        sums = weight_sums(sequences, 3, make_vocab(), objective)
        drafter = make_drafter()
        whole = total_loss(scored(drafter, sequences, 3, objective), sums, objective)
        parts = [
            total_loss(scored(drafter, part, 3, objective), sums, objective)
            for part in (sequences[:1], sequences[1:])
        ]
        torch.testing.assert_close(parts[0] + parts[1], whole)


def test_weights_by_sequence_and_kind_by_hand() -> None:
    kinds = torch.tensor([PROMPT, REASONING, REASONING, ANSWER, ANSWER, END_OF_TURN], dtype=torch.uint8)
    states = states_of(kinds, weight=2.0)
    # labels predict reasoning, answer, answer, end of turn; step 1 reaches the last three
    objective = Objective(kind_weights={"reasoning": 0.5, "end_of_turn": 0.0})
    sums = weight_sums([states], 2, make_vocab(), objective)
    assert sums.tolist() == [2 * (0.5 + 1 + 1), 2 * (1 + 1)]
    by_sequence = Objective(normaliser="sequence", kind_weights=objective.kind_weights)
    assert weight_sums([states], 2, make_vocab(), by_sequence).tolist() == pytest.approx([2.0, 2.0])


def test_a_frozen_head_gets_no_gradient_and_changes_no_other() -> None:
    sequences = [make_states(3, 7, seed=1)]
    gradients = []
    for frozen in (False, True):
        drafter = make_drafter()
        drafter.lm_head.weight.requires_grad_(not frozen)
        scores = scored(drafter, sequences, 2, Objective())
        torch.stack([score.loss_sum for score in scores]).sum().backward()
        assert (drafter.lm_head.weight.grad is None) == frozen
        gradients.append(drafter.fc.weight.grad)
    torch.testing.assert_close(*gradients)


def test_bf16_autocast_keeps_losses_in_float32_and_near() -> None:
    sequences = [make_states(3, 9, seed=1), make_states(2, 4, seed=2)]
    drafter = make_drafter(norm_before_fc=True).float()
    exact = scored(drafter, sequences, 3, Objective())
    with torch.autocast("cpu", torch.bfloat16):
        rough = scored(drafter, sequences, 3, Objective(), measure=True)
    total = total_loss(rough, torch.stack([score.weight_sum for score in rough]), Objective())
    total.backward()
    assert total.dtype == torch.float32
    for one, other in zip(exact, rough, strict=True):
        assert other.loss_sum.dtype == torch.float32
        torch.testing.assert_close(other.loss_sum, one.loss_sum, rtol=0.05, atol=0.05)
    assert {p.grad.dtype for p in drafter.parameters() if p.grad is not None} == {torch.float32}


def test_float32_is_near_float64_in_loss_and_gradients() -> None:
    """In float32 the products go another way (eyas.gemm) than in the float64 of the tests above."""
    sequences = [make_states(3, 17, seed=1), make_states(5, 8, seed=2), make_states(2, 2, seed=3)]
    found = []
    for kind in (torch.float64, torch.float32):
        drafter = make_drafter(norm_before_fc=True, norm_output=True).to(kind)
        scores = scored(drafter, sequences, 3, Objective())
        total_loss(scores, torch.stack([score.weight_sum for score in scores]), Objective()).backward()
        found.append([parameter.grad for parameter in drafter.parameters()])
    for exact, rough in zip(*found, strict=True):
        assert exact is not None and rough is not None  # noqa: PT018
        torch.testing.assert_close(rough.double(), exact, rtol=1e-4, atol=1e-5 * float(exact.abs().max()))


def test_bf16_adds_up_the_gradient_of_the_head_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many chunks, as a large draft vocabulary has, give what one chunk gives."""
    sequences = [make_states(3, 200, seed=1)]
    found = []
    for elements in (2**21, 1):
        monkeypatch.setitem(rowloss.CHUNK_ELEMENTS, "cpu", elements)
        drafter = make_drafter().float()
        with torch.autocast("cpu", torch.bfloat16):
            scores = scored(drafter, sequences, 2, Objective())
        torch.stack([score.loss_sum for score in scores]).sum().backward()
        found.append(drafter.lm_head.weight.grad)
    whole, chunks = found
    assert whole is not None and chunks is not None  # noqa: PT018
    assert float((chunks - whole).norm() / whole.norm()) < 0.003
