"""Training end to end on the real stores of a tiny target."""

from __future__ import annotations

import dataclasses
import warnings
from pathlib import Path

import pytest
import torch

from eyas.drafter.chains import draft_chain_hits
from eyas.drafter.vocab import VocabMap
from eyas.errors import GateError
from eyas.shards import HiddenStore
from eyas.target.model import TargetHead
from eyas.train.fit import FitInputs, FitResult, fit
from eyas.train.params import TrainParams
from tests.extract.greedy import greedy_sequences, make_extractor
from tests.tiny_target import profile_of

from .test_optim import PARAMS


@pytest.fixture(scope="module")
def inputs(llama: Path, tmp_path_factory: pytest.TempPathFactory) -> FitInputs:
    profile = profile_of(llama)
    store = tmp_path_factory.mktemp("hidden") / "train"
    make_extractor(llama).extract("train", greedy_sequences(llama), store)
    used = {token for states in HiddenStore(store) for token in states.token_ids.tolist()}
    vocab = VocabMap.of_ids(torch.tensor(sorted(used | {0, 1, 2})), profile.vocab_size)
    head = TargetHead.read(llama, profile, "float32")
    return FitInputs(
        profile=profile, vocab=vocab, head=head, train=HiddenStore(store), val=HiddenStore(store)
    )


def run(inputs: FitInputs, params: TrainParams, directory: Path) -> FitResult:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # third-party loggers warn about their own settings
        return fit(inputs, params, directory)


OVERFIT = dataclasses.replace(PARAMS, epochs=60, lr=5e-3, batch_tokens=200, clip_norm=1.0, step_decay=1.0)


@pytest.mark.parametrize(("optimizer", "lr"), [("adamw", 5e-3), ("muon", 2e-2)])
def test_it_learns_what_the_target_said(inputs: FitInputs, tmp_path: Path, optimizer: str, lr: float) -> None:
    untrained = run(inputs, dataclasses.replace(OVERFIT, epochs=1, lr=1e-9), tmp_path / "untrained")
    assert untrained.summary["val"]["acceptance_length"] < 1.3
    result = run(inputs, dataclasses.replace(OVERFIT, optimizer=optimizer, lr=lr), tmp_path / "trained")
    assert result.summary["val"]["acceptance_length"] > 2.2  # of 3 at most: two draft steps and the bonus
    assert result.summary["val"]["accuracy_step_1"] > 0.8
    hits = [
        draft_chain_hits(result.drafter, inputs.vocab, inputs.val[index], inputs.head.embedding, 2).hits
        for index in range(len(inputs.val))
    ]
    accepted = torch.cat(hits).long().cumprod(dim=1).sum(dim=1).double()
    assert 1 + accepted.mean().item() == pytest.approx(result.summary["val"]["acceptance_length"])


def test_two_runs_are_the_same_bits(inputs: FitInputs, tmp_path: Path) -> None:
    params = dataclasses.replace(OVERFIT, epochs=2)
    first, second = (run(inputs, params, tmp_path / name) for name in ("a", "b"))
    assert first.summary == second.summary
    weights = zip(first.drafter.parameters(), second.drafter.parameters(), strict=True)
    assert all(torch.equal(one, other) for one, other in weights)
    curves = sorted(path.relative_to(tmp_path / "a") for path in (tmp_path / "a").rglob("*.tsv"))
    assert Path("plots/metrics/val/acceptance_length.tsv") in curves
    for curve in curves:
        assert (tmp_path / "a" / curve).read_bytes() == (tmp_path / "b" / curve).read_bytes()


def test_a_frozen_head_keeps_the_target_rows(inputs: FitInputs, tmp_path: Path) -> None:
    result = run(inputs, dataclasses.replace(OVERFIT, epochs=1, freeze_lm_head=True), tmp_path)
    assert torch.equal(result.drafter.lm_head.weight, inputs.head.lm_head[inputs.vocab.draft_ids])


def test_a_loss_that_is_not_finite_stops(inputs: FitInputs, tmp_path: Path) -> None:
    head = dataclasses.replace(inputs.head, lm_head=torch.full_like(inputs.head.lm_head, torch.inf))
    with pytest.raises(GateError, match="the loss is nan"):
        run(dataclasses.replace(inputs, head=head), dataclasses.replace(OVERFIT, epochs=1), tmp_path)
