"""Reports of a training run: what it came to, and apart from that how fast it was."""

from __future__ import annotations

import resource
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from eyas.drafter.model import Drafter
from eyas.files import write_bytes
from eyas.metrics import share
from eyas.train.data import DrafterData
from eyas.train.guards import does_not_rise
from eyas.train.params import TrainParams
from eyas.train.record import Record, Validation


def summary_report(
    params: TrainParams, drafter: Drafter, data: DrafterData, record: Record
) -> dict[str, Any]:
    """The same for the same inputs, however often the run was killed. `val` is of the published weights."""
    untrained = record.untrained
    last = record.validations[-1] if record.validations else untrained
    assert last is not None
    best = record.best or last
    published = best if params.publish == "best" else last
    weights = list(drafter.named_parameters())
    before = None if untrained is None else untrained.acceptance_length
    return {
        "acceptance_length": published.acceptance_length,
        "published": params.publish,
        "published_step": published.step,
        "published_epoch": published.epoch,
        "best_acceptance_length": best.acceptance_length,
        "best_step": best.step,
        "last_acceptance_length": last.acceptance_length,
        "untrained_acceptance_length": before,
        "rises_above_untrained": not does_not_rise(before, best.acceptance_length),
        "stopped_early": record.stopped_early,
        "epochs": last.epoch,
        "steps": record.step,
        "tokens_seen": record.tokens,
        "trained_tokens_seen": record.labels,
        "train_sequences": len(data.train),
        "val_sequences": len(data.val),
        "parameters": sum(weight.numel() for _, weight in weights),
        "trained_parameters": sum(
            weight.numel()
            for name, weight in weights
            if not (params.freeze_lm_head and name.startswith("lm_head"))
        ),
        "val": published.values,
    }


def speed_report(record: Record, processes: int) -> dict[str, Any]:
    """What depends on the machine. Seconds are those up to the last saved state, over all runs."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return {
        "tokens_per_s": share(record.tokens, record.seconds),
        "trained_tokens_per_s": share(record.labels, record.seconds),
        "seconds": record.seconds,
        "seconds_validating": record.validating,
        "seconds_saving": record.saving,
        "resumed": record.resumed,
        "processes": processes,
        "peak_memory_bytes": peak,
        "peak_gpu_memory_bytes": torch.cuda.max_memory_allocated() if torch.cuda.is_available() else None,
    }


def write_validations(path: Path, record: Record) -> None:
    """The validations as TSV, a row each, with epoch and step; the untrained drafter's first, if it was validated."""
    found = [*([record.untrained] if record.untrained else []), *record.validations]
    write_bytes(path, "".join(f"{line}\n" for line in _lines(found)).encode())


def _lines(found: list[Validation]) -> Iterator[str]:
    names = sorted(found[0].values, key=lambda name: (name != "acceptance_length", name))
    yield "\t".join(["epoch", "step", *names])
    for validation in found:
        values = [repr(validation.values[name]) for name in names]
        yield "\t".join([str(validation.epoch), str(validation.step), *values])
