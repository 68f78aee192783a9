"""Sampled answers against the target: those of a tiny one, right and with planted faults."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch

from eyas.errors import GateError
from eyas.extract.agreement import Agreement
from eyas.extract.backend import Backend
from eyas.extract.predictions import predict
from eyas.extract.rules import Rules
from eyas.extract.table import Sequences
from eyas.extract.tally import Tally
from eyas.sampling import GREEDY, Sampling
from eyas.target.model import TargetHead, TargetStates
from tests.extract.drawing import sampled_sequences
from tests.extract.spoiled import good_backend, spoiled, swapped, with_last
from tests.tiny_target import profile_of, write_target

COOL = Sampling("vllm", 0.7, 1.0, 0)
CUT = Sampling("vllm", 0.8, 0.8, 40)


def rules(sampling: Sampling, dtype: str = "float32") -> Rules:
    return Rules(sampling, dtype, min_agreement=1.0, max_sampling_z=6.0)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_target(tmp_path_factory.mktemp("t") / "tiny", tied=False)


@pytest.fixture(scope="module")
def backend(tiny: Path) -> Backend:
    return good_backend(tiny)


@pytest.fixture(scope="module")
def head(tiny: Path) -> TargetHead:
    return TargetHead.read(tiny, profile_of(tiny), "float32")


@pytest.fixture(scope="module", params=[COOL, CUT], ids=["temperature alone", "top_p and top_k"])
def sampling(request: pytest.FixtureRequest) -> Sampling:
    chosen: Sampling = request.param
    return chosen


@pytest.fixture(scope="module")
def drawn(tiny: Path) -> Callable[[Sampling], Sequences]:
    return cache(lambda sampling: sampled_sequences(tiny, sampling, count=40, answer=45))


@pytest.fixture(scope="module")
def answers(drawn: Callable[[Sampling], Sequences], sampling: Sampling) -> Sequences:
    return drawn(sampling)


def judge(backend: Backend, head: TargetHead, sequences: Sequences, sampling: Sampling) -> Agreement:
    agreement = Agreement(rules(sampling), sequences.per_dataset(sequences.checked_counts))
    for start in range(0, len(sequences), 8):
        numbers = range(start, min(start + 8, len(sequences)))
        for number, states in zip(
            numbers, backend.states([sequences.ids(number) for number in numbers]), strict=True
        ):
            count_one(agreement, head, sequences, number, states)
    return agreement


def count_one(
    agreement: Agreement, head: TargetHead, sequences: Sequences, number: int, states: TargetStates
) -> None:
    tokens = torch.tensor(sequences.ids(number))
    before = torch.nonzero(torch.tensor(sequences.kinds[number])[1:]).flatten()
    following = tokens[before + 1]
    predicted = predict(head, states.last[before], following, agreement.rules.sampling)
    agreement.add(sequences.sequence_ids[number], sequences.datasets[number], before, following, predicted)


def test_sampled_answers_pass(
    backend: Backend, head: TargetHead, answers: Sequences, sampling: Sampling
) -> None:
    agreement = judge(backend, head, answers, sampling)
    agreement.check()
    for dataset in "ab":
        report = agreement.report(dataset)
        assert abs(report["sampling_z"]) < 4
        assert report["outside_share"] == 0
        assert report["odd_sequences"] == 0
        assert report["agreement"] < 0.9
        assert agreement.tallies[dataset].variance > 200


@pytest.mark.parametrize("fault", ["swapped", "shifted", "norm twice"])
def test_sampled_answers_with_wrong_states(
    backend: Backend, head: TargetHead, answers: Sequences, sampling: Sampling, fault: str
) -> None:
    faults = {
        "swapped": swapped,
        "shifted": with_last(lambda last: last.roll(1, dims=0)),
        "norm twice": with_last(head.normed),
    }
    agreement = judge(spoiled(backend, faults[fault]), head, answers, sampling)
    with pytest.raises(GateError) as caught:
        agreement.check()
    if fault == "swapped":  # the first two of every batch of 8
        assert "can't come from their states" in caught.value.what
        names = {found.sequence_id for dataset in "ab" for found in agreement.odd(dataset)}
        assert names <= {f"{'ab'[n % 2]}:{n}" for n in (0, 1, 8, 9, 16, 17, 24, 25, 32, 33)}
        assert len(names) == len(agreement.odd("a")) + len(agreement.odd("b"))
        assert len(names) >= 8  # a short one does not say enough


def test_two_swapped_sequences_late_in_a_run(
    backend: Backend, head: TargetHead, answers: Sequences, sampling: Sampling
) -> None:
    """2 of 40: the dataset's own numbers hardly move, the sequences speak for themselves."""
    agreement = judge(backend, head, answers, sampling)
    states = swapped(backend.states([answers.ids(30), answers.ids(33)]))
    for number, wrong in zip((30, 33), states, strict=True):
        count_one(agreement, head, answers, number, wrong)
    with pytest.raises(GateError, match=r"1 of 21 sequences of a can't come from their states: a:30"):
        agreement.check()
    assert agreement.odd("b")[0].sequence_id == "b:33"


@pytest.mark.parametrize(
    ("judged", "message"),
    [
        pytest.param(
            replace(COOL, temperature=1.0), r"nats less surprising .* temperature 1: -", id="hotter"
        ),
        pytest.param(
            replace(COOL, temperature=0.5), r"nats more surprising .* temperature 0.5: ", id="cooler"
        ),
        pytest.param(
            replace(COOL, top_p=0.9), r"are none that temperature 0.7, top_p 0.9 could give", id="top_p"
        ),
        pytest.param(replace(COOL, top_k=5), "are none that temperature 0.7, top_k 5 could give", id="top_k"),
        pytest.param(GREEDY, "are not what the target predicts", id="greedy"),
    ],
)
def test_other_sampling_than_params_say(
    backend: Backend,
    head: TargetHead,
    drawn: Callable[[Sampling], Sequences],
    judged: Sampling,
    message: str,
) -> None:
    with pytest.raises(GateError, match=message):
        judge(backend, head, drawn(COOL), judged).check()


def test_greedy_answers_where_sampled_ones_are_expected(
    backend: Backend, head: TargetHead, tiny: Path
) -> None:
    sequences = sampled_sequences(tiny, replace(COOL, top_k=1), count=40, answer=45)
    judge(backend, head, sequences, GREEDY).check()
    with pytest.raises(GateError, match="less surprising"):
        judge(backend, head, sequences, COOL).check()


def test_without_a_limit_sampled_answers_are_only_reported(
    backend: Backend, head: TargetHead, answers: Sequences, sampling: Sampling
) -> None:
    agreement = judge(spoiled(backend, swapped), head, answers, sampling)
    free = Agreement(replace(agreement.rules, max_sampling_z=float("inf")), agreement.expected)
    free.merge(agreement)
    free.check()
    assert free.report("a")["odd_sequences"] >= 4


def test_rounding_makes_no_large_dataset_fail() -> None:
    """0.005 nats per token are 5 standard deviations after a million tokens, and no more than bfloat16 explains."""
    tally = Tally(sequences=1, checked=10**6, excess=5000.0, variance=1e6)
    assert tally.z(bias=0.0) == pytest.approx(5.0)
    z = tally.z(rules(COOL, dtype="bfloat16").bias)
    assert z is not None
    assert z < 0.5
    assert Tally(sequences=1, checked=10, excess=0.0, variance=0.0).z(0.01) is None


def test_few_tokens_are_not_judged_by_z(tiny: Path, head: TargetHead) -> None:
    """One token of probability 1e-6 among certain ones is far out, and no sign of anything."""
    logits = torch.zeros(30, 300)
    logits[:, 0] = 14.0
    weights = torch.linalg.lstsq(head.normed(torch.ones(1, 32)).float(), logits[:1]).solution.T.contiguous()
    peaked = replace(head, lm_head=weights)
    tokens = torch.zeros(30, dtype=torch.long)
    tokens[4] = 5
    plain = Sampling("vllm", 1.0, 1.0, 0)
    predicted = predict(peaked, torch.ones(30, 32), tokens, plain)
    agreement = Agreement(rules(plain), {"a": 30})
    agreement.add("s", "a", torch.arange(30), tokens, predicted)
    z = agreement.tallies["a"].z(0.0)
    assert z is not None
    assert z > 6
    agreement.check()
