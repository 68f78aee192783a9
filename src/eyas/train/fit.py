"""Training a drafter from the hidden-state stores of the train and val splits."""

from __future__ import annotations

import logging
import math
import sys
import time
import warnings
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from dvclive.lightning import DVCLiveLogger
from lightning.pytorch import Callback, LightningModule, Trainer, seed_everything
from lightning.pytorch.callbacks import TQDMProgressBar

from eyas.drafter.config import DrafterConfig
from eyas.drafter.model import Drafter
from eyas.drafter.vocab import VocabMap
from eyas.shards import HiddenStore
from eyas.target.model import TargetHead
from eyas.target.spec import TargetProfile
from eyas.train.data import TokenBudgetBatches, loader
from eyas.train.module import DrafterModule
from eyas.train.params import TrainParams

logger = logging.getLogger("eyas.train")

LINE_EVERY_S = 30.0


@dataclass(frozen=True)
class FitInputs:
    """What a training run reads."""

    profile: TargetProfile
    vocab: VocabMap
    head: TargetHead
    train: HiddenStore
    val: HiddenStore


@dataclass(frozen=True)
class FitResult:
    """A trained drafter and its summary for the report."""

    drafter: Drafter
    summary: dict[str, Any]


def drafter_config(profile: TargetProfile, vocab: VocabMap, params: TrainParams) -> DrafterConfig:
    """The drafter's shape: the target's widths, heads, rope and lengths; the params' flags."""
    return DrafterConfig(
        hidden_size=profile.hidden_size,
        target_hidden_size=profile.hidden_size,
        num_aux_layers=len(profile.aux_layer_ids),
        intermediate_size=profile.intermediate_size,
        num_attention_heads=profile.num_attention_heads,
        num_key_value_heads=profile.num_key_value_heads,
        head_dim=profile.head_dim,
        vocab_size=profile.vocab_size,
        draft_vocab_size=vocab.size,
        rms_norm_eps=profile.rms_norm_eps,
        rope_theta=profile.rope_theta,
        rope_scaling=profile.rope_scaling,
        max_position_embeddings=profile.max_position_embeddings,
        aux_layer_ids=list(profile.aux_layer_ids),
        **asdict(params.drafter),
    )


def new_drafter(config: DrafterConfig, vocab: VocabMap, head: TargetHead, params: TrainParams) -> Drafter:
    """A fresh drafter; its head starts as the target's rows of the draft vocabulary."""
    drafter = Drafter(config)
    with torch.no_grad():
        drafter.lm_head.weight.copy_(head.lm_head[vocab.draft_ids])
    drafter.lm_head.weight.requires_grad_(not params.freeze_lm_head)
    return drafter


def fit(inputs: FitInputs, params: TrainParams, live_directory: Path) -> FitResult:
    """Train; curves go to `live_directory` (DVCLive's layout). Deterministic on one machine.

    Raises:
        GateError: nothing to train on, or the loss is not finite.
    """
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)  # its tips and device lines are not ours
    seed_everything(params.seed, workers=True, verbose=False)
    config = drafter_config(inputs.profile, inputs.vocab, params)
    drafter = new_drafter(config, inputs.vocab, inputs.head, params)
    train = loader(inputs.train, params.batch_tokens, params.ttt_steps, seed=params.seed, shuffle=True)
    val = loader(inputs.val, params.batch_tokens, params.ttt_steps, seed=params.seed, shuffle=False)
    sampler = train.batch_sampler
    assert isinstance(sampler, TokenBudgetBatches)
    total_steps = sum(len(sampler.batches(epoch)) for epoch in range(params.epochs))
    module = DrafterModule(drafter, inputs.vocab, inputs.head, params, total_steps)
    history = History(total_steps)
    trainer = _trainer(params, live_directory, history)
    with warnings.catch_warnings():
        # batches are packed from a memory map in the main process; workers would copy them once more
        warnings.filterwarnings("ignore", message=".*does not have many workers.*")
        warnings.filterwarnings("ignore", message=".*LeafSpec.*")  # Lightning's use of torch
        trainer.fit(module, train, val)
    return FitResult(drafter=drafter.eval(), summary=history.summary(params, drafter, total_steps))


def _trainer(params: TrainParams, live_directory: Path, history: History) -> Trainer:
    live = DVCLiveLogger(dir=str(live_directory), dvcyaml=None, report=None, save_dvc_exp=False)
    terminal = sys.stderr.isatty()
    callbacks: list[Callback] = [history, *([TQDMProgressBar(leave=True)] if terminal else [])]
    return Trainer(
        max_epochs=params.epochs,
        logger=live,
        callbacks=callbacks,
        enable_checkpointing=False,
        enable_model_summary=False,
        enable_progress_bar=terminal,
        num_sanity_val_steps=0,
        log_every_n_steps=5,
        use_distributed_sampler=False,
        deterministic=True,
        devices=1,
    )


class History(Callback):
    """Keeps the validation results of each epoch, and prints a line per epoch and every 30 s."""

    def __init__(self, total_steps: int) -> None:
        self.total_steps = total_steps
        self.steps = 0
        self.epochs: list[dict[str, float]] = []
        self.started = time.monotonic()
        self.last_line = self.started

    def on_train_batch_end(self, trainer: Trainer, module: LightningModule, *args: Any) -> None:
        self.steps += 1
        if time.monotonic() - self.last_line >= LINE_EVERY_S:
            self._line(trainer)

    def on_validation_end(self, trainer: Trainer, module: LightningModule) -> None:
        metrics = {name: float(value) for name, value in trainer.callback_metrics.items()}
        self.epochs.append(
            {name.removeprefix("val/"): value for name, value in metrics.items() if name.startswith("val/")}
        )
        self._line(trainer)

    def summary(self, params: TrainParams, drafter: Drafter, total_steps: int) -> dict[str, Any]:
        """The report: last and best epoch on the val split, and sizes."""
        lengths = [epoch["acceptance_length"] for epoch in self.epochs]
        best = max(range(len(lengths)), key=lengths.__getitem__)
        return {
            "epochs": params.epochs,
            "steps": total_steps,
            "parameters": sum(weight.numel() for weight in drafter.parameters()),
            "trained_parameters": sum(
                weight.numel() for weight in drafter.parameters() if weight.requires_grad
            ),
            "val": self.epochs[-1],
            "best_epoch": best + 1,
            "best_val_acceptance_length": lengths[best],
        }

    def _line(self, trainer: Trainer) -> None:
        self.last_line = time.monotonic()
        elapsed = self.last_line - self.started
        left = elapsed / max(self.steps, 1) * (self.total_steps - self.steps)
        metrics = trainer.callback_metrics
        logger.info(
            "step %d/%d  loss %.3f  val acceptance length %s  %.0f s, %.0f s left",
            self.steps,
            self.total_steps,
            float(metrics.get("train/loss", torch.tensor(math.nan))),
            f"{self.epochs[-1]['acceptance_length']:.3f}" if self.epochs else "-",
            elapsed,
            left,
        )
