"""The callback that makes a Lightning run resumable and visible: saved state, best weights, curves, early stopping."""

from __future__ import annotations

import contextlib
import logging
import signal
import time
from dataclasses import dataclass, field
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer

from eyas.errors import JournalError
from eyas.train.course import Course
from eyas.train.curves import Curves
from eyas.train.data import DrafterData
from eyas.train.guards import does_not_rise, memory_error, out_of_memory
from eyas.train.journal import TrainJournal
from eyas.train.module import DrafterModule, StepOutcome
from eyas.train.params import TrainParams
from eyas.train.record import Record, Validation
from eyas.train.state import SavedState, Trained, load_state
from eyas.train.view import View

logger = logging.getLogger("eyas.train")

ROWS = 200
"""The curves of training have about so many rows, each a mean over the steps since the row before."""


@dataclass(eq=False)
class RunLoop(Callback):
    """Follows a run. Every process resumes; only the first writes and shows."""

    journal: TrainJournal
    params: TrainParams
    data: DrafterData
    checkpoint_every_s: float
    record: Record = field(default_factory=Record)
    saved: SavedState | None = None
    view: View | None = None
    curves: Curves | None = None
    _saved_at: float = 0.0
    _continued_at: float = 0.0
    _validating_at: float = 0.0

    @property
    def course(self) -> Course:
        return self.data.course

    def resume(self, saved: SavedState | None) -> None:
        """Go on from a saved state, or begin."""
        if saved is not None:
            self.saved, self.record = saved, saved.record

    @property
    def done(self) -> bool:
        """Whether nothing is left to train."""
        return self.record.stopped_early or self.record.stretch == len(self.course.stretches)

    def on_fit_start(self, trainer: Trainer, module: LightningModule) -> None:
        _keep_stop_signals()
        self._check_same_state(trainer)
        if self.saved is not None:
            load_state(_trained(module), self.saved)
            self.saved = None
            self.record.resumed += 1
            logger.info("going on after step %d of %d", self.record.step, self.course.steps)
        self.data.offset = self.record.offset
        progress: Any = trainer.fit_loop.epoch_progress.current
        progress.ready = progress.started = progress.processed = progress.completed = self.record.stretch
        if trainer.is_global_zero:
            self.curves = Curves(self.journal.live, self.record.step)

    def on_train_start(self, trainer: Trainer, module: LightningModule) -> None:
        self._try_heaviest(module)
        self._saved_at = self._continued_at = time.monotonic()
        if trainer.is_global_zero:
            tokens = int(self.data.train.sizes.tokens.sum()) * self.params.epochs
            self.view = View(self.record, self.course.steps, tokens, self.params.epochs)

    def on_train_batch_end(self, trainer: Trainer, module: LightningModule, outputs: Any, *args: Any) -> None:
        record = self.record
        outcome = _outcome(module)
        record.step, record.offset = outcome.number + 1, record.offset + 1
        record.tokens += outcome.tokens
        record.labels += outcome.labels
        record.window.add(outcome.loss, outcome.step_losses, outcome.grad_norm)
        self._row(outcome)
        if self.view is not None:
            self.view.step(outcome)
        ends = record.offset == len(self.course.stretches[record.stretch])
        due = time.monotonic() - self._saved_at >= self.checkpoint_every_s
        if due and not ends:  # at its end a stretch is validated first
            self._save(trainer, module)

    def on_validation_start(self, trainer: Trainer, module: LightningModule) -> None:
        self._validating_at = time.monotonic()

    def on_validation_end(self, trainer: Trainer, module: LightningModule) -> None:
        record = self.record
        assert isinstance(module, DrafterModule)
        if trainer.sanity_checking or not self.course.stretches:
            record.untrained = Validation(0, 0, module.validation)
            self._curve(0, "val", module.validation)
            return
        record.validating += time.monotonic() - self._validating_at
        stretch = self.course.stretches[record.stretch]
        found = Validation(record.step, stretch.epoch + 1, module.validation)
        record.validations.append(found)
        record.stretch, record.offset = record.stretch + 1, 0
        self._curve(record.step, "val", found.values)
        if record.best is found and trainer.is_global_zero:
            with module.published() as drafter:
                self.journal.save_best(found, drafter.state_dict())
        if self.params.early_stopping is not None and record.waited >= self.params.early_stopping:
            record.stopped_early = trainer.should_stop = True
            if record.window.steps:  # no later step writes them
                self._window(record.step, _outcome(module).lr)
        self._warn_if_flat(stretch.epoch == 0 and (stretch.ends_epoch or record.stopped_early))
        self._save(trainer, module)
        if self.view is not None:
            self.view.show()

    def on_exception(self, trainer: Trainer, module: LightningModule, exception: BaseException) -> None:
        if self.view is not None:
            self.view.close()

    def teardown(self, trainer: Trainer, module: LightningModule, stage: str) -> None:
        if self.view is not None:
            self.view.close()
        if self.curves is not None:
            self.curves.close()

    def _row(self, outcome: StepOutcome) -> None:
        every = max(1, -(-self.course.steps // ROWS))
        if (outcome.number + 1) % every == 0 or outcome.number + 1 == self.course.steps:
            self._window(outcome.number + 1, outcome.lr)

    def _window(self, step: int, lr: float) -> None:
        """Write the means of the steps since the row before."""
        values = {**self.record.window.means(), "lr": lr}
        self.record.window = type(self.record.window)()
        self._curve(step, "train", values)

    def _curve(self, step: int, group: str, values: dict[str, float]) -> None:
        if self.curves is not None:
            self.curves.row(step, {f"{group}/{name}": value for name, value in values.items()})

    def _save(self, trainer: Trainer, module: LightningModule) -> None:
        now = time.monotonic()
        self.record.seconds += now - self._continued_at
        self._continued_at = now
        if trainer.is_global_zero:
            self.journal.save(_trained(module), self.record)
        self._saved_at = time.monotonic()
        self.record.saving += self._saved_at - now

    def _warn_if_flat(self, due: bool) -> None:
        untrained, best = self.record.untrained, self.record.best
        if due and untrained and best and does_not_rise(untrained.acceptance_length, best.acceptance_length):
            logger.warning(
                "after %d steps the acceptance length is %.3f, untrained it was %.3f: the drafter does not learn; "
                "look at the learning rate, the size of the draft vocabulary and reports/extraction.json",
                self.record.step,
                best.acceptance_length,
                untrained.acceptance_length,
            )

    def _check_same_state(self, trainer: Trainer) -> None:
        """All processes must go on from the same step."""
        if trainer.world_size == 1:
            return
        steps = torch.tensor(self.record.step, device=trainer.strategy.root_device)
        total = trainer.strategy.reduce(steps, reduce_op="sum")
        if int(total) != self.record.step * trainer.world_size:
            raise JournalError(
                "the processes do not see the same saved state",
                where=str(self.journal.directory),
                hint="data/.journal must lie on a file system that all nodes share",
            )

    def _try_heaviest(self, module: LightningModule) -> None:
        """Forward and backward of the largest passes, without consequence, so that memory fails now or not at all."""
        assert isinstance(module, DrafterModule)
        for part in self.data.heaviest_passes():
            try:
                module.rehearse(self.data.packed(part, self.data.train))
            except (torch.OutOfMemoryError, RuntimeError) as error:
                if not memory_error(error):
                    raise
                lengths = self.data.train.sizes.tokens[part].tolist()
                raise out_of_memory(self.data.train.ids(part), lengths, self.data.pass_tokens) from error


def _outcome(module: LightningModule) -> StepOutcome:
    assert isinstance(module, DrafterModule)
    assert module.outcome is not None
    return module.outcome


def _trained(module: LightningModule) -> Trained:
    assert isinstance(module, DrafterModule)
    return Trained(module.drafter, module.raw_optimizers, module.average)


def _keep_stop_signals() -> None:
    """Lightning's SIGTERM handler waits for the end of a batch, and for other processes: ours stops at once."""
    with contextlib.suppress(ValueError):  # not in the main thread
        handler = signal.getsignal(signal.SIGTERM)
        functions = getattr(handler, "signal_handlers", ())
        if functions and callable(functions[-1]) and len(functions) > 1:
            signal.signal(signal.SIGTERM, functions[-1])
