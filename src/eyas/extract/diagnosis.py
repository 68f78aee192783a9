"""What states are, if they are not what they should be: other layers, sequences, positions, or values.

Letters in shape comments: T tokens, H hidden size, A aux layers, N layers of the target.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from eyas.target.model import TargetHead, TargetStates

TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 1e-1, torch.float16: 1e-2}
"""Largest relative difference of a state vector between two ways of computing it."""
IMPRECISE = 0.5
"""Below this difference values are the right ones, computed with less precision."""
IMPRECISELY = "it is right, but as of a target in another dtype or a quantised one"


@dataclass(frozen=True)
class Example:
    """A sequence whose states the model itself has given."""

    sequence_id: str
    tokens: list[int]
    hidden_states: list[Tensor] = field(repr=False)
    """N + 1 times [T, H], as transformers' `hidden_states`; the last one is after the final norm."""


@dataclass(frozen=True)
class Finding:
    """A state that is not what it should be."""

    sequence_id: str
    state: str
    """For example `aux state of layer 15`."""
    difference: float
    """Relative to the length of the right vectors; the largest over positions."""
    cause: str
    """What it is instead, as far as can be found."""
    imprecise: bool
    """Whether it is the right state, computed with less precision than the model's own."""


@dataclass(frozen=True)
class Comparison:
    """Captured states of an example against the model's own."""

    differences: dict[str, float]
    """Largest relative difference per state."""
    findings: list[Finding]
    """One for each state that is another."""


def distance(ours: Tensor, theirs: Tensor) -> Tensor:
    """[T] relative difference of vectors: of the first min(T, T') rows of [T, H] and [T', H].

    Each vector is compared relative to its own length: a few positions have values thousands of times larger than all
    others and would hide any error.
    """
    rows = min(len(ours), len(theirs))
    ours, theirs = ours[:rows].to(theirs.device).float(), theirs[:rows].float()
    apart: Tensor = (ours - theirs).norm(dim=-1) / theirs.norm(dim=-1).clamp_min(1e-6)
    return apart


def compare(
    head: TargetHead,
    aux_layer_ids: Sequence[int],
    examples: Sequence[Example],
    own: int,
    states: TargetStates,
) -> Comparison:
    """Compare captured states with an example's own, and find out what those are that differ.

    A state must lie within the dtype's tolerance, and no other layer may lie nearer: in deep models neighbouring layers
    differ by less than the rounding of 16-bit types.

    Args:
        head: the target's, for its final norm.
        aux_layer_ids: of the captured states.
        examples: the one that the states should be of, and others that they may be of instead.
        own: its number among the examples.
        states: aux [T, A, H] and last [T, H].
    """
    right = examples[own].hidden_states
    differences: dict[str, float] = {}
    findings = []
    for state in _states(head, aux_layer_ids, states):
        apart = distance(state.values, right[state.layer])
        differences[state.name] = apart.max().item()
        tolerance = TOLERANCE.get(right[0].dtype, TOLERANCE[torch.float32])
        nearest = state.layer if state.is_last else _nearest(state.values, right[:-1])
        if not (differences[state.name] <= tolerance and nearest == state.layer):
            cause = next(_causes(state, examples, own, tolerance))
            findings.append(
                Finding(
                    sequence_id=examples[own].sequence_id,
                    state=state.name,
                    difference=differences[state.name],
                    cause=cause,
                    imprecise=cause == IMPRECISELY,
                )
            )
    return Comparison(differences, findings)


@dataclass(frozen=True)
class _State:
    """One captured state."""

    name: str
    layer: int
    """Index of hidden_states that it should equal."""
    values: Tensor
    """[T, H]; of the last state after the final norm."""
    raw: Tensor
    """[T, H] as captured."""
    is_last: bool


def _states(head: TargetHead, aux_layer_ids: Sequence[int], states: TargetStates) -> Iterator[_State]:
    for column, layer in enumerate(aux_layer_ids):
        values = states.aux[:, column]
        yield _State(f"aux state of layer {layer}", layer, values, values, is_last=False)
    last = states.last.to(head.norm_weight.device)
    yield _State("last state", -1, head.normed(last), last, is_last=True)


def _nearest(values: Tensor, layers: Sequence[Tensor]) -> int:
    """The layer whose states lie nearest on average."""
    return int(torch.stack([distance(values, layer).mean() for layer in layers]).argmin())


def _causes(state: _State, examples: Sequence[Example], own: int, tolerance: float) -> Iterator[str]:
    """What the values are, the likeliest first; there is always one."""
    right = examples[own].hidden_states
    placed = state.is_last or _nearest(state.values, right[:-1]) == state.layer
    if placed and _is(state.values, right[state.layer], tolerance):
        yield IMPRECISELY
    yield from _other_layer(state, right, tolerance)
    for number, example in enumerate(examples):
        if number != own and _is(state.values, example.hidden_states[state.layer], tolerance):
            yield f"it is that of sequence {example.sequence_id}: sequences of a batch are swapped"
    if state.is_last and _is(_best_norm(state.raw, right[-1]), right[-1], tolerance):
        yield "it is right, but the head's final norm is missing or not the target's"
    yield from _shifted(state.values, right[state.layer], tolerance)
    apart = distance(state.values, right[state.layer])
    if placed and apart.max() < IMPRECISE:
        yield IMPRECISELY
    yield from _some_rows(torch.nonzero(apart > tolerance).flatten().tolist(), len(apart))
    yield "it is that of no layer"


def _other_layer(state: _State, right: Sequence[Tensor], tolerance: float) -> Iterator[str]:
    layers = len(right) - 1
    if state.is_last and _is(state.raw, right[-1], tolerance):
        yield "the final norm has been applied to it already, and would be applied twice"
    layer = _nearest(state.raw, right[:-1])
    expected = layers if state.is_last else state.layer
    if layer != expected and _is(state.raw, right[layer], tolerance):
        off = f": off by {'one' if abs(layer - expected) == 1 else abs(layer - expected)}"
        expected_name = "the output of the last layer" if state.is_last else str(expected)
        yield f"it is that of layer {layer}, not {expected_name}{off}"


def _shifted(values: Tensor, right: Tensor, tolerance: float) -> Iterator[str]:
    for shift in (1, -1, 2, -2):
        ours, theirs = (values[shift:], right[:-shift]) if shift > 0 else (values[:shift], right[-shift:])
        if len(ours) > 1 and _is(ours, theirs, tolerance):
            yield f"its rows are shifted by {abs(shift)}: row {max(shift, 0)} is that of token {max(-shift, 0)}"


def _some_rows(wrong: Sequence[int], rows: int) -> Iterator[str]:
    """Where the others are right."""
    if not 0 < len(wrong) < rows:
        return
    first, last = wrong[0], wrong[-1]
    if last - first + 1 == len(wrong):
        yield f"its rows at tokens {first}..{last} are wrong, all others right"
    yield f"{len(wrong)} of its {rows} rows are wrong, the first at token {first}"


def _is(values: Tensor, candidate: Tensor, tolerance: float) -> bool:
    return bool(distance(values, candidate).mean() <= tolerance)


def _best_norm(last: Tensor, normed: Tensor) -> Tensor:
    """[T, H]: the RMSNorm of `last` with those weights that come nearest to `normed`."""
    wide = last.float()
    wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True).clamp_min(1e-12))
    theirs = normed[: len(wide)].float().to(wide.device)
    weights = (wide * theirs).sum(0) / wide.square().sum(0).clamp_min(1e-12)  # [H], least squares
    return wide * weights
