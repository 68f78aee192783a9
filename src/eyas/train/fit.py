"""Training a drafter from the hidden-state stores of the train and val splits."""

from __future__ import annotations

import logging
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lightning.pytorch import seed_everything

from eyas.compute import ComputeParams
from eyas.drafter.model import Drafter
from eyas.drafter.vocab import VocabMap
from eyas.hashing import digest, file_digest, files_digest
from eyas.manifest import MANIFEST
from eyas.shards import HiddenStore
from eyas.target.model import TargetHead
from eyas.target.spec import TargetProfile
from eyas.train.data import DrafterData
from eyas.train.initial import first_drafter, initial_digest
from eyas.train.journal import TrainJournal
from eyas.train.loop import RunLoop
from eyas.train.module import DrafterModule
from eyas.train.params import TrainParams
from eyas.train.record import Record
from eyas.train.report import speed_report, summary_report
from eyas.train.state import published_weights
from eyas.train.trainer import make_trainer, run, validate

VERSION = 1
PACKAGE = Path(__file__).parent.parent
NEUTRAL = ("guards", "prefetch", "view")
"""Modules of training that decide neither weights nor reports."""
"""Raise it when the same params and data train differently: saved states of the old code are then not gone on with."""


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
    """A trained drafter, and what its training came to."""

    drafter: Drafter
    """With the weights that are published."""
    summary: dict[str, Any]
    """The same for the same inputs."""
    speed: dict[str, Any]
    """What depends on the machine."""
    record: Record
    journal: TrainJournal
    """Open until the result is published; then `remove` it."""


def identity(inputs: FitInputs, params: TrainParams) -> dict[str, Any]:
    """What decides a result: data, vocabulary, target, params, version of this code."""
    return {
        "version": VERSION,
        "target": inputs.profile.digest,
        "vocab": digest(inputs.vocab.draft_ids.tolist()),
        "train": file_digest(inputs.train.directory / MANIFEST),
        "val": file_digest(inputs.val.directory / MANIFEST),
        "init_from": initial_digest(params),
        "params": asdict(params),
        "code": _code_digest(),
    }


def _code_digest() -> str:
    """Digest of the modules that decide weights and reports: a run that was killed does not go on with other code."""
    modules = [path for name in ("drafter", "train") for path in (PACKAGE / name).glob("*.py")]
    modules += [
        PACKAGE / name for name in ("gemm.py", "shards.py", "states.py", "storage.py", "target/model.py")
    ]
    return files_digest((path for path in modules if path.stem not in NEUTRAL), PACKAGE)


def fit(inputs: FitInputs, params: TrainParams, compute: ComputeParams, journals: Path) -> FitResult | None:
    """Train, or go on with a run that was killed; state and curves go to a folder in `journals`.

    On a CPU with the same number of processes the result is the same bits, killed or not. Returns None in all processes
    but the first.

    Raises:
        GateError: nothing to train on, memory does not suffice, or the loss is not finite.
        JournalError: another process trains the same, or the journal is damaged.
    """
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)  # its tips and device lines are not ours
    seed_everything(params.seed, workers=True, verbose=False)
    drafter = first_drafter(inputs.profile, inputs.vocab, inputs.head, params)
    data = DrafterData(inputs.train, inputs.val, inputs.vocab, params, compute.pass_tokens)
    journal = TrainJournal(journals, identity(inputs, params))
    loop = RunLoop(journal, params, data, compute.checkpoint_every_s)
    trainer = make_trainer(compute, params.precision, len(data.course.stretches), loop)
    if trainer.is_global_zero:
        journal.open()
    else:
        logging.getLogger("eyas").setLevel(logging.ERROR)  # the first process speaks for all
    try:
        loop.resume(journal.read())
        if not loop.done:
            trainer.num_sanity_val_steps = 0 if loop.saved else float("inf")  # the untrained drafter once
            run(trainer, DrafterModule(drafter, inputs.vocab, inputs.head, params, data.course.steps), data)
        elif not data.course.stretches:
            validate(trainer, DrafterModule(drafter, inputs.vocab, inputs.head, params, 0), data)
        if trainer.is_global_zero:
            return _result(drafter.cpu(), params, data, loop.record, journal, trainer.world_size)
    except BaseException:
        journal.close()
        raise
    return None


def _result(
    drafter: Drafter,
    params: TrainParams,
    data: DrafterData,
    record: Record,
    journal: TrainJournal,
    processes: int,
) -> FitResult:
    """The weights that are published come from the journal, whether they were trained just now or before a kill."""
    if record.validations:  # otherwise it is published as it came
        best = record.best if params.publish == "best" else None
        last = journal.read()
        assert last is not None
        drafter.load_state_dict(published_weights(last) if best is None else journal.read_best(best))
    return FitResult(
        drafter=drafter.eval(),
        summary=summary_report(params, drafter, data, record),
        speed=speed_report(record, processes),
        record=record,
        journal=journal,
    )
