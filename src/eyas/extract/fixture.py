"""A few sequences whose captured states are compared with the model's own `output_hidden_states` before every run.

Letters in shape comments: T tokens, H hidden size, A aux layers.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from eyas.errors import GateError
from eyas.extract.backend import Backend
from eyas.extract.diagnosis import Example, Finding, compare
from eyas.extract.gate import check_states
from eyas.extract.reference import Reference
from eyas.target.model import TargetHead, TargetStates

logger = logging.getLogger("eyas.extract")

FIXTURE_TOKENS = 128
SHORTER = (1.0, 0.6, 0.8)
"""Lengths of the three relative to the longest, so that a batch of them has padding."""
SHARED = 0.3
"""The third begins with this share of the first, as turns of one conversation do."""
SHOWN = 6


@dataclass(frozen=True)
class FixtureSequence:
    """Tokens for the comparison; any tokens will do."""

    sequence_id: str
    """For messages."""
    tokens: list[int]


@dataclass(frozen=True)
class FixtureResult:
    """How far captured states were from the model's own."""

    sequences: int
    worst: float | None
    """Largest relative difference of a state vector; None if nothing was compared."""
    state: str | None
    """Where that was, for example `aux state of layer 15`."""
    skipped: str | None
    """Why nothing was compared."""

    def report(self) -> dict[str, Any]:
        """For reports/extraction.json. Two digits: kernels differ in the others."""
        worst = None if self.worst is None else float(f"{self.worst:.1e}")
        return {
            "sequences": self.sequences, "worst_difference": worst, "worst_state": self.state, "skipped": self.skipped,
        }  # fmt: skip


def fixture_sequences(
    sequence_ids: Sequence[str], token_ids: Sequence[Sequence[int]]
) -> list[FixtureSequence]:
    """Three sequences of different lengths, cut from the first of a split, two of which begin alike.

    Faults of batches need that to be seen: padding, swapped rows, shared prefixes.
    """
    chosen = [number for number, tokens in enumerate(token_ids) if len(tokens) > 1][:3]
    if not chosen:
        return []
    longest = min(FIXTURE_TOKENS, max(len(token_ids[number]) for number in chosen))
    first = max(chosen, key=lambda number: len(token_ids[number]))
    others = [number for number in chosen if number != first] or [first]
    begin = [*token_ids[first][:longest]]
    middle = [*token_ids[others[0]], *begin][: max(2, int(SHORTER[1] * longest))]
    alike = [*begin[: int(SHARED * longest)], *token_ids[others[-1]]][: max(2, int(SHORTER[2] * longest))]
    return [
        FixtureSequence(sequence_ids[first], begin),
        FixtureSequence(sequence_ids[others[0]], middle),
        FixtureSequence(f"{sequence_ids[others[-1]]} after the beginning of {sequence_ids[first]}", alike),
    ]


@torch.inference_mode()
def check_fixture(
    backend: Backend, head: TargetHead, reference: Reference, sequences: Sequence[FixtureSequence]
) -> FixtureResult:
    """Compare the captured states of a batch with the model's own, computed one sequence at a time.

    Raises:
        GateError: a state is not finite, zero or another one; says which one it is instead.
    """
    if reference.hidden_states is None or not sequences:
        return FixtureResult(0, None, None, reference.missing or "there are no sequences")
    examples = [
        Example(each.sequence_id, each.tokens, reference.hidden_states(each.tokens)) for each in sequences
    ]
    batch = backend.states([each.tokens for each in sequences])
    differences: dict[str, float] = {}
    findings: list[Finding] = []
    for own, (each, states) in enumerate(zip(sequences, batch, strict=True)):
        check_states(each.sequence_id, each.tokens, states)
        compared = compare(head, backend.aux_layer_ids, examples, own, states)
        findings += compared.findings
        for state, difference in compared.differences.items():
            differences[state] = max(difference, differences.get(state, 0.0))
    if wrong := _wrong(findings, reference):
        together = "" if _wrong_alone(backend, head, examples) else " (right if computed alone)"
        raise _error(wrong, f"the comparison at the start of extraction{together}")
    if findings:
        logger.warning(
            "%s computes with less precision than transformers: %s", backend.name, _described(findings)
        )
    state = max(differences, key=lambda name: differences[name])
    return FixtureResult(len(sequences), differences[state], state, None)


@torch.inference_mode()
def check_spot(
    head: TargetHead,
    aux_layer_ids: Sequence[int],
    reference: Reference,
    sequence: FixtureSequence,
    states: TargetStates,
) -> float | None:
    """Compare the states of a sequence in the middle of a run, up to its first 128 tokens, with the model's own.

    Returns:
        The largest relative difference; None where there is no reference.

    Raises:
        GateError: as check_fixture.
    """
    if reference.hidden_states is None:
        return None
    tokens = sequence.tokens[:FIXTURE_TOKENS]
    cut = TargetStates(aux=states.aux[: len(tokens)], last=states.last[: len(tokens)])
    example = Example(sequence.sequence_id, tokens, reference.hidden_states(tokens))
    compared = compare(head, aux_layer_ids, [example], 0, cut)
    if wrong := _wrong(compared.findings, reference):
        raise _error(wrong, "the comparison of one sequence of each shard")
    return max(compared.differences.values())


def _wrong_alone(backend: Backend, head: TargetHead, examples: Sequence[Example]) -> bool:
    """Whether states are wrong too if each sequence is computed alone."""
    return any(
        compare(head, backend.aux_layer_ids, [example], 0, backend.states([example.tokens])[0]).findings
        for example in examples
    )


def _wrong(findings: Sequence[Finding], reference: Reference) -> list[Finding]:
    """Without those that only show the precision of the kernels that serve."""
    return [found for found in findings if not (found.imprecise and reference.foreign)]


def _error(findings: Sequence[Finding], where: str) -> GateError:
    return GateError(
        _described(findings),
        where=where,
        hint="this target's states can't be captured rightly with this backend and version; report its architecture",
    )


def _described(findings: Sequence[Finding]) -> str:
    """Names the states, each cause once."""
    by_cause: dict[tuple[str, str], Finding] = {}
    for found in findings:
        by_cause.setdefault((found.state, found.cause), found)
    shown = [
        f"the {found.state} of {found.sequence_id} differs from the model's own by {found.difference:.3g} of its length: "
        f"{found.cause}"
        for found in list(by_cause.values())[:SHOWN]
    ]
    more = f"; and {len(by_cause) - SHOWN} more" if len(by_cause) > SHOWN else ""
    return "; ".join(shown) + more
