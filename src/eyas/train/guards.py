"""What stops a training run, or warns about it, before it has cost hours."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import torch

from eyas import tokenkinds
from eyas.drafter.batch import DraftBatch
from eyas.errors import ArtifactError, GateError
from eyas.shards import SequenceStates, label_positions

SHOWN_IDS = 8


def named(ids: Sequence[str]) -> str:
    """Sequence ids for a message, the first few."""
    more = f" and {len(ids) - SHOWN_IDS} more" if len(ids) > SHOWN_IDS else ""
    return ", ".join(ids[:SHOWN_IDS]) + more


def check_labels(states: SequenceStates, directory: Path) -> None:
    """Labels must stand exactly where this token and the next were generated: never at a prompt position.

    Raises:
        ArtifactError: names the sequence and the first wrong position.
    """
    expected = label_positions(states.loss_mask)
    if torch.equal(states.label_positions, expected):
        return
    wrong = sorted(set(states.label_positions.tolist()) ^ set(expected.tolist()))
    raise ArtifactError(
        f"labels of sequence {states.sequence_id} do not stand where it was generated: position {wrong[0]}"
        if wrong
        else f"labels of sequence {states.sequence_id} are not in order",
        where=str(directory),
        hint="dvc repro -f extract",
    )


def check_supervision(batch: DraftBatch) -> None:
    """No draft step may be trained on a prompt token.

    Raises:
        GateError: names the sequence.
    """
    wrong = torch.nonzero(batch.label_kinds == tokenkinds.PROMPT).flatten()
    if len(wrong):
        sequence = batch.sequence_ids[int(batch.label_sequence[wrong[0]])]
        raise GateError(
            f"a label of sequence {sequence} is a prompt token",
            where=sequence,
            hint="look at it with `eyas peek --sequence`; then dvc repro -f extract",
        )


def check_finite(values: Sequence[float], step: int, ids: Sequence[Sequence[str]]) -> None:
    """Losses and the norm of the gradient must be numbers; checked before the weights change.

    Raises:
        GateError: names the sequences of the step.
    """
    if all(math.isfinite(value) for value in values):
        return
    what = "gradient" if all(math.isfinite(value) for value in values[:-1]) else "loss"
    sequences = [sequence for part in ids for sequence in part]
    raise GateError(
        f"the {what} is not finite at step {step}",
        where=f"sequences {named(sequences)}",
        hint="a lower train.lr or train.clip_norm; with bf16-mixed try 32-true; then look for bad hidden states "
        "with `dvc repro -f extract`",
    )


def memory_error(error: BaseException) -> bool:
    """Whether an error says that memory did not suffice, on a GPU or a CPU."""
    return isinstance(error, torch.OutOfMemoryError) or (
        isinstance(error, RuntimeError) and "allocate memory" in str(error)
    )


def out_of_memory(ids: Sequence[str], lengths: Sequence[int], pass_tokens: int | None) -> GateError:
    """The error for a pass that does not fit."""
    return GateError(
        f"memory does not suffice for the largest pass: {sum(lengths)} tokens, the longest sequence {max(lengths)}",
        where=f"sequences {named(ids)}",
        hint=f"lower compute.pass_tokens (now {pass_tokens or 'null: a whole share'}), which changes no result; if one "
        "sequence alone is too long: train.precision: bf16-mixed, a lower train.ttt_steps or reassemble.max_length",
    )


def does_not_rise(untrained: float | None, best: float | None) -> bool:
    """Whether training has not lifted the acceptance length above where it began."""
    return untrained is not None and best is not None and best <= untrained
