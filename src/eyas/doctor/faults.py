"""Mistakes that an engine may make with a sound folder, planted in what it would otherwise compute."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from eyas.doctor.hypothesis import Change, Hypothesis
from eyas.doctor.material import Material
from eyas.doctor.repairs import by_one, other_layers
from eyas.referee.folder import IDS
from eyas.referee.reading import Flags
from eyas.referee.rope import DEFAULT_THETA, Rope
from eyas.referee.tensorfile import Table

ENGINE = "the engine"


@dataclass(frozen=True)
class Mirrored:
    """An embedding that is not the target's: its rows in reverse."""

    table: Table

    @property
    def shape(self) -> tuple[int, ...]:
        return self.table.shape

    def __getitem__(self, rows: Any) -> Any:
        return self.table[self.table.shape[0] - 1 - rows]


def faults(material: Material) -> Iterator[Hypothesis]:
    """Every planted fault; those that need the target itself come last."""
    for make in (_flags, _vocab, _weights, _rope, _order, _layers):
        yield from make(material)


def _planted(material: Material, cause: str, what: str, key: str, should: str, **changes: Any) -> Hypothesis:
    reading = replace(material.as_is, **changes)
    return Hypothesis(cause, what, Change(ENGINE, key, what, should), reading, reading.layer_ids)


def _flags(material: Material) -> Iterator[Hypothesis]:
    reading = material.as_is
    for name in ("norm_before_residual", "norm_output", "norm_before_fc", "fc_norm"):
        now = getattr(reading.flags, name)
        if now or name in ("norm_before_residual", "norm_output"):
            flags = replace(reading.flags, **{name: not now})
            what = f"{name} taken as {str(not now).lower()}"
            yield _planted(material, name, what, name, str(now).lower(), flags=flags)
    if reading.flags == Flags():
        return
    plain = f"{sum(vars(reading.flags).values())} flags"
    if sum(vars(reading.flags).values()) > 1:
        yield _planted(material, "norm_output", "all flags ignored", "EAGLE-3.1 flags", plain, flags=Flags())


def _vocab(material: Material) -> Iterator[Hypothesis]:
    reading = material.as_is
    count = np.arange(reading.shape.draft_vocab_size)
    if np.array_equal(reading.target_ids, count):
        return
    should = "target id = draft id + d2t"
    yield _planted(material, "d2t_ignored", "d2t ignored", "d2t", should, target_ids=count)
    offsets = reading.target_ids - count
    yield _planted(material, "d2t_absolute", "d2t taken as target ids", "d2t", should, target_ids=offsets)


def _weights(material: Material) -> Iterator[Hypothesis]:
    reading = material.as_is
    ones = {**reading.weights, "norm": np.ones_like(reading.weights["norm"])}
    yield _planted(material, "final_norm", "the final norm left out", "norm", "norm.weight", weights=ones)
    mirrored = Mirrored(reading.embedding)
    yield _planted(
        material, "embedding", "another embedding", "embed_tokens", "the target's", embedding=mirrored
    )
    ids, head = reading.target_ids, material.target.head
    if ids.max() < head.shape[0] and head.shape[1] == reading.shape.hidden_size:
        rows = head[ids]
        yield _planted(material, "head_of_target", "the target's head", "lm_head", "its own", head=rows)
        first = head[: len(ids)]
        if not np.array_equal(ids, np.arange(len(ids))):
            yield _planted(material, "head_missing", "no head of its own", "lm_head", "its own", head=first)
    yield _planted(
        material,
        "positions",
        "positions not advanced",
        "positions of draft steps",
        "one more with each step",
        positions_advance=False,
    )


def _rope(material: Material) -> Iterator[Hypothesis]:
    rope = material.as_is.rope
    if rope.theta != DEFAULT_THETA:
        other = replace(rope, theta=DEFAULT_THETA)
        yield _planted(
            material,
            "rope_theta",
            f"rope theta {DEFAULT_THETA:g}",
            "rope_theta",
            f"{rope.theta:g}",
            rope=other,
        )
    if rope.scaling is not None:
        plain = Rope(rope.theta)
        yield _planted(material, "rope_scaling", "rope not scaled", "rope_scaling", rope.text, rope=plain)


def _order(material: Material) -> Iterator[Hypothesis]:
    ids = material.as_is.layer_ids
    order = list(range(len(ids)))[::-1]
    change = Change(ENGINE, "order of the aux states", str(ids[::-1]), str(ids))
    yield Hypothesis("aux_order", "aux states in reverse order", change, material.as_is, ids, order=order)


def _layers(material: Material) -> Iterator[Hypothesis]:
    now = material.as_is.layer_ids
    for ids in other_layers(material):
        cause = "aux_layers_default" if ids == material.target.default_layer_ids else "aux_layers_other"
        if by_one(now, ids):
            cause = "aux_layers_shifted"
        change = Change(ENGINE, IDS, str(ids), str(now))
        yield Hypothesis(
            cause, f"states of layers {ids}", change, replace(material.as_is, layer_ids=ids), ids
        )
    change = Change(ENGINE, "target", "another revision or quantisation", "the one of the hidden states")
    yield Hypothesis(
        "other_target", "a target with rounded weights", change, material.as_is, now, quantised=True
    )
