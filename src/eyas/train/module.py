"""The Lightning module: an optimiser step, and a validation batch. The maths is in eyas.drafter.

Letters in shape comments: S draft steps.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from eyas.drafter.batch import DraftBatch
from eyas.drafter.loss import DraftTargets, StepScores, score_steps, total_loss
from eyas.drafter.model import Drafter
from eyas.drafter.vocab import VocabMap
from eyas.target.model import TargetHead
from eyas.train.acceptance import AcceptanceSums
from eyas.train.data import Work
from eyas.train.guards import check_finite
from eyas.train.optim import WeightAverage, build_optimizers, lr_factor
from eyas.train.params import TrainParams


@dataclass(frozen=True)
class StepOutcome:
    """What an optimiser step came to, over all processes."""

    number: int
    """Of the step in the whole run, from 0."""
    loss: float
    step_losses: list[float]
    """[S]: weighted mean of each draft step."""
    grad_norm: float
    """Before clipping."""
    lr: float
    tokens: int
    labels: int


class DrafterModule(LightningModule):
    """Trains a drafter against a frozen target head.

    Optimisation is manual: an optimiser step is one batch to Lightning, whatever number of passes it takes, and Muon and
    AdamW step together. Lightning's own `global_step` would count both, so steps are numbered by the data.
    """

    embedding: Tensor
    head_rows: Tensor

    def __init__(
        self, drafter: Drafter, vocab: VocabMap, head: TargetHead, params: TrainParams, total_steps: int
    ) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.drafter = drafter
        self.vocab = vocab
        self.head = head
        self.params = params
        self.factor = lr_factor(params, total_steps)
        self.register_buffer("embedding", head.embedding, persistent=False)  # [V, H]
        self.register_buffer("head_rows", head.lm_head[vocab.draft_ids], persistent=False)  # [Vd, H]
        self.trained = [weight for weight in drafter.parameters() if weight.requires_grad]
        self.average: WeightAverage | None = None
        self.sums = AcceptanceSums(params.ttt_steps)
        self.validation: dict[str, float] = {}
        """Result of the last validation."""
        self.outcome: StepOutcome | None = None
        """Of the last step."""
        self._validating = ExitStack()

    def configure_optimizers(self) -> Any:
        if self.params.ema:
            self.average = WeightAverage(self.drafter, self.params.ema)
        return build_optimizers(self.drafter, self.params)

    def on_fit_start(self) -> None:
        self.vocab = self.vocab.to(self.device)
        self.head = replace(self.head, norm_weight=self.head.norm_weight.to(self.device))

    def on_validation_start(self) -> None:
        self.on_fit_start()  # a drafter that is only validated is never fitted

    @property
    def raw_optimizers(self) -> list[torch.optim.Optimizer]:
        """The torch optimisers, Muon first if there is one."""
        chosen = self.optimizers(use_pl_optimizer=False)
        return chosen if isinstance(chosen, list) else [chosen]

    def training_step(self, work: Work, batch_index: int) -> None:
        weight_sums = self._summed(work.weight_sums)  # [S], over all processes and passes
        for optimizer in self.raw_optimizers:
            optimizer.zero_grad()
        losses = torch.zeros(
            self.params.ttt_steps + 1, device=self.device
        )  # [S + 1]: of each draft step, in all
        ids: list[tuple[str, ...]] = []
        for place, batch in enumerate(work.batches):
            ids.append(batch.sequence_ids)
            with self._synchronised(place == work.count - 1):
                losses += self._pass(batch, weight_sums, idle=work.idle)
        norm = torch.nn.utils.clip_grad_norm_(self.trained, self.params.clip_norm)
        values = torch.cat((self._summed(losses), norm.detach().reshape(1))).tolist()
        check_finite(values, work.number, ids)
        lr = self.params.lr * self.factor(work.number)
        self._step(lr, work.number)
        self.outcome = StepOutcome(
            work.number, values[-2], values[:-2], values[-1], lr, work.tokens, work.labels
        )

    def _pass(self, batch: DraftBatch, weight_sums: Tensor, *, idle: bool) -> Tensor:
        """Forward and backward; returns this pass's part of the mean loss of each draft step and of the loss, [S + 1]."""
        scores = self.scores(batch.to(self.device))
        loss = total_loss(scores, weight_sums, self.params.objective)
        if idle:  # gradients are reduced by all processes together, so each needs some
            self.manual_backward(loss * 0.0)
            return torch.zeros(len(scores) + 1, device=self.device)
        # DistributedDataParallel divides the sum of gradients by the number of processes
        self.manual_backward(loss * self.trainer.world_size)
        sums = torch.stack([score.loss_sum.detach() for score in scores])
        means = sums / weight_sums.clamp(min=1e-30).to(sums)
        return torch.cat((means, loss.detach().reshape(1)))

    def rehearse(self, batch: DraftBatch) -> None:
        """One forward and backward pass of a batch without consequence, beside as much memory as the optimisers will take."""
        kept = {
            weight for optimizer in self.raw_optimizers for weight in optimizer.state
        }  # a run that goes on has them
        ballast = [
            torch.empty_like(weight) for weight in self.trained if weight not in kept for _ in range(2)
        ]
        with self.trainer.precision_plugin.train_step_context():
            scores = self.scores(batch.to(self.device))
            loss = total_loss(scores, torch.ones(len(scores), device=self.device), self.params.objective)
        loss.backward()
        del ballast
        self.drafter.zero_grad()

    def _step(self, lr: float, number: int) -> None:
        for optimizer in self.raw_optimizers:
            for group in optimizer.param_groups:
                group["lr"] = lr
            optimizer.step()
        if self.average is not None:
            self.average.update(self.drafter, number)

    def on_validation_epoch_start(self) -> None:
        self.sums = AcceptanceSums(self.params.ttt_steps)
        if self.average is not None:
            self._validating.enter_context(self.average.applied(self.drafter))

    def validation_step(self, batch: DraftBatch | None, batch_index: int) -> None:
        if batch is not None:
            self.sums.add(self.scores(batch.to(self.device), measure=True))

    def on_validation_epoch_end(self) -> None:
        self._validating.close()
        self.validation = AcceptanceSums.of_vector(self._summed(self.sums.vector)).result()

    def scores(self, batch: DraftBatch, *, measure: bool = False) -> list[StepScores]:
        """Scores of a batch on this device."""
        normed = self.head.normed(batch.last)
        targets = DraftTargets.of(normed, self.head_rows, batch.argmax, self.vocab, batch.logsumexp)
        objective = self.params.objective
        return score_steps(self.drafter, batch, targets, self.embedding, objective, measure=measure)

    @contextmanager
    def published(self) -> Iterator[Drafter]:
        """The drafter with the weights that are validated and published: the averaged ones, if there are."""
        with self.average.applied(self.drafter) if self.average is not None else nullcontext():
            yield self.drafter

    @contextmanager
    def _synchronised(self, last: bool) -> Iterator[None]:
        """Gradients are exchanged in the last pass only; before, they add up in each process."""
        wrapped = self.trainer.strategy.model
        with nullcontext() if last or not isinstance(wrapped, DistributedDataParallel) else wrapped.no_sync():
            yield

    def _summed(self, values: Tensor) -> Tensor:
        """The sum over processes."""
        if self.trainer.world_size == 1:
            return values
        return self.trainer.strategy.reduce(values.to(self.device), reduce_op="sum")
