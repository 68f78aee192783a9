"""The Lightning module: one batch in, a loss and the acceptance numbers out. The maths is in eyas.drafter."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor
from torch.optim.lr_scheduler import LambdaLR

from eyas.drafter.batch import DraftBatch
from eyas.drafter.loss import DraftTargets, StepScores, score_steps, total_loss
from eyas.drafter.model import Drafter
from eyas.drafter.vocab import VocabMap
from eyas.errors import GateError
from eyas.target.model import TargetHead
from eyas.train.optim import build_optimizers, lr_factor
from eyas.train.params import TrainParams


class DrafterModule(LightningModule):
    """Trains a drafter against a frozen target head."""

    embedding: Tensor
    head_rows: Tensor

    def __init__(
        self, drafter: Drafter, vocab: VocabMap, head: TargetHead, params: TrainParams, total_steps: int
    ) -> None:
        super().__init__()
        self.automatic_optimization = False  # Muon and AdamW step together
        self.drafter = drafter
        self.vocab = vocab
        self.head = head
        self.params = params
        self.total_steps = total_steps
        self.register_buffer("embedding", head.embedding, persistent=False)  # [V, H]
        self.register_buffer("head_rows", head.lm_head[vocab.draft_ids], persistent=False)  # [Vd, H]
        self.validation = AcceptanceMean(params.ttt_steps)

    def on_fit_start(self) -> None:
        self.vocab = self.vocab.to(self.device)
        self.head = replace(self.head, norm_weight=self.head.norm_weight.to(self.device))

    def configure_optimizers(self) -> Any:
        optimizers = build_optimizers(self.drafter, self.params)
        factor = lr_factor(self.params, self.total_steps)
        return optimizers, [LambdaLR(optimizer, factor) for optimizer in optimizers]

    def training_step(self, batch: DraftBatch, batch_index: int) -> None:
        scores = self._scores(batch)
        loss = total_loss(scores, self.params.step_decay)
        if not torch.isfinite(loss):
            raise GateError(
                f"the loss is {loss.item()} at step {self.global_step}",
                hint="a lower train.lr; then look for bad hidden states with `dvc repro -f extract`",
            )
        self._optimise(loss)
        self.log("train/loss", loss.detach())
        self.log("train/lr", self._schedulers()[0].get_last_lr()[0])
        for step, score in enumerate(scores):
            self.log(f"train/loss_step_{step + 1}", score.loss.detach() / max(score.rows, 1))

    def _optimise(self, loss: Tensor) -> None:
        optimizers = self.optimizers()
        chosen: list[Any] = optimizers if isinstance(optimizers, list) else [optimizers]
        for optimizer in chosen:
            optimizer.zero_grad()
        self.manual_backward(loss)
        torch.nn.utils.clip_grad_norm_(self.drafter.parameters(), self.params.clip_norm)
        for optimizer in chosen:
            optimizer.step()
        for scheduler in self._schedulers():
            scheduler.step()

    def _schedulers(self) -> list[Any]:
        schedulers = self.lr_schedulers()
        return schedulers if isinstance(schedulers, list) else [schedulers]

    def validation_step(self, batch: DraftBatch, batch_index: int) -> None:
        self.validation.add(self._scores(batch))

    def on_validation_epoch_end(self) -> None:
        for name, value in self.validation.result().items():
            self.log(f"val/{name}", value)
        self.validation = AcceptanceMean(self.params.ttt_steps)

    def _scores(self, batch: DraftBatch) -> list[StepScores]:
        normed = self.head.normed(batch.last)
        targets = DraftTargets.of(normed, self.head_rows, batch.argmax, self.vocab)
        return score_steps(
            self.drafter,
            batch,
            targets,
            self.embedding,
            self.params.ttt_steps,
            mask_out_of_vocab=self.params.mask_out_of_vocab,
        )

    def transfer_batch_to_device(
        self, batch: DraftBatch, device: torch.device, dataloader_idx: int
    ) -> DraftBatch:
        return batch.to(device)


class AcceptanceMean:
    """Simulated greedy acceptance over all anchors of a split, each anchor counted once.

    An engine visits only some anchors, so its numbers differ a little; eyas.evaluate walks as the engine does.
    """

    def __init__(self, steps: int) -> None:
        self.anchors = 0
        self.accepted = torch.zeros(steps, dtype=torch.int64)  # drafts whose first k+1 steps all hit
        self.hits = torch.zeros(steps, dtype=torch.int64)
        self.rows = torch.zeros(steps, dtype=torch.int64)
        self.loss = 0.0
        self.loss_rows = 0

    def add(self, scores: list[StepScores]) -> None:
        """Count one batch."""
        hits = torch.stack([score.hits for score in scores], dim=1).cpu()  # [P, S]
        valid = torch.stack([score.valid for score in scores], dim=1).cpu()
        self.anchors += len(hits)
        self.accepted += hits.long().cumprod(dim=1).sum(dim=0)
        self.hits += hits.sum(dim=0)
        self.rows += valid.sum(dim=0)
        self.loss += float(scores[0].loss.detach())
        self.loss_rows += scores[0].rows

    def result(self) -> dict[str, float]:
        """Acceptance length (bonus token included), acceptance at each step, accuracy of each step, first-step loss."""
        anchors = max(self.anchors, 1)
        result = {"acceptance_length": 1 + float(self.accepted.sum()) / anchors}
        for step, (accepted, hits, rows) in enumerate(
            zip(self.accepted.tolist(), self.hits.tolist(), self.rows.tolist(), strict=True)
        ):
            result[f"acceptance_at_{step + 1}"] = accepted / anchors
            result[f"accuracy_step_{step + 1}"] = hits / max(rows, 1)
        result["loss"] = self.loss / max(self.loss_rows, 1)
        return result
