"""Readings of a folder that may be what it was trained as: one thing taken otherwise than the engine takes it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import permutations
from typing import Any

import numpy as np

from eyas.doctor.hypothesis import Change, Hypothesis
from eyas.doctor.material import Material
from eyas.referee.folder import IDS
from eyas.referee.reading import Flags, Reading
from eyas.referee.rope import DEFAULT_THETA, Rope
from eyas.referee.tensorfile import Floats

CONFIG = "config.json"
WEIGHTS = "model.safetensors"


def repairs(material: Material) -> Iterator[Hypothesis]:
    """Every repair that makes sense for this folder, but for other layers."""
    for make in (_flags, _vocab, _embedding, _rope, _order):
        yield from make(material)


def _flags(material: Material) -> Iterator[Hypothesis]:
    reading = material.as_is
    for name in ("norm_before_residual", "norm_output"):
        now = getattr(reading.flags, name)
        yield _of(material, name, replace(reading, flags=replace(reading.flags, **{name: not now})), now)
    for name, tensors in (("norm_before_fc", ["input_norm"]), ("fc_norm", _parts(reading))):
        now = getattr(reading.flags, name)
        weights = _loaded(material, tensors)
        if now:
            yield _of(material, name, replace(reading, flags=replace(reading.flags, **{name: False})), now)
        elif weights:
            flags = replace(reading.flags, **{"norm_before_fc": False, "fc_norm": False, name: True})
            yield _of(
                material, name, replace(reading, flags=flags, weights={**reading.weights, **weights}), now
            )


def _of(material: Material, flag: str, reading: Reading, now: bool) -> Hypothesis:
    change = Change(CONFIG, flag, _json(now), _json(not now))
    return Hypothesis(flag, f"{flag} {_json(not now)}", change, reading, material.as_is.layer_ids)


def _parts(reading: Reading) -> list[str]:
    return [f"fc_norm.{layer}" for layer in range(reading.shape.aux_layers)]


def _loaded(material: Material, names: list[str]) -> dict[str, Floats]:
    """Norms that lie in the file, used or not; none unless all are there and fit."""
    found = {name: material.folder.tensors.get(f"{name}.weight") for name in names}
    shapes = material.as_is.shape.norms_before_fc(Flags(norm_before_fc=True, fc_norm=True))
    if any(tensor is None or tensor.shape != shapes[name] for name, tensor in found.items()):
        return {}
    return {name: tensor.array() for name, tensor in found.items() if tensor is not None}


def _vocab(material: Material) -> Iterator[Hypothesis]:
    reading, tensors = material.as_is, material.folder.tensors
    count = np.arange(reading.shape.draft_vocab_size)
    if reading.shape.draft_vocab_size == reading.shape.vocab_size:
        return
    d2t = tensors["d2t"].array() if "d2t" in tensors else None
    if d2t is not None and len(np.unique(d2t)) == len(d2t):
        ids = replace(reading, target_ids=d2t)
        change = Change(WEIGHTS, "d2t", "target ids", "offsets: target id minus draft id")
        yield Hypothesis("d2t_absolute", "d2t taken as target ids", change, ids, reading.layer_ids)
    t2d = tensors["t2d"].array() if "t2d" in tensors else None
    if t2d is not None and int(t2d.sum()) == len(count):
        ids = replace(reading, target_ids=np.flatnonzero(t2d))
        if not np.array_equal(ids.target_ids, reading.target_ids):
            cause = "d2t_ignored" if d2t is None or not d2t.any() else "d2t_other"
            now = "not in the file" if d2t is None else "not the map of t2d"
            change = Change(WEIGHTS, "d2t", now, "nonzero(t2d) - arange")
            yield Hypothesis(cause, "d2t made from t2d", change, ids, reading.layer_ids)


def _embedding(material: Material) -> Iterator[Hypothesis]:
    reading = material.as_is
    own = material.folder.tensors.get("embed_tokens.weight")
    if own is None or own.shape != material.target.embedding.shape:
        return
    change = Change(WEIGHTS, "embed_tokens.weight", "its own", "left out, so that the target's is used")
    with_target = replace(reading, embedding=material.target.embedding)
    yield Hypothesis("embedding", "the target's embedding", change, with_target, reading.layer_ids)


def _rope(material: Material) -> Iterator[Hypothesis]:
    reading = material.as_is
    tried = [
        material.target.rope,
        replace(material.target.rope, theta=reading.rope.theta),
        replace(reading.rope, theta=material.target.rope.theta),
        Rope(DEFAULT_THETA),
        Rope(reading.rope.theta),
    ]
    seen = [reading.rope]
    for rope in tried:
        if rope in seen:
            continue
        seen.append(rope)
        cause = "rope_scaling" if rope.scaling != reading.rope.scaling else "rope_theta"
        key = "rope_parameters" if "rope_parameters" in material.folder.config else cause
        change = Change(CONFIG, key, reading.rope.text, rope.text)
        yield Hypothesis(
            cause, f"rope with {rope.text}", change, replace(reading, rope=rope), reading.layer_ids
        )


def _order(material: Material) -> Iterator[Hypothesis]:
    plain = tuple(range(material.as_is.shape.aux_layers))
    if len(plain) > 3:
        orders: list[Any] = [plain[::-1]]
    else:
        orders = [order for order in permutations(plain) if order != plain]
    for order in orders:
        ids = [material.as_is.layer_ids[place] for place in order]
        change = Change(
            WEIGHTS,
            "columns of fc.weight (and blocks of input_norm, fc_norm)",
            f"layers {ids}",
            f"layers {material.as_is.layer_ids}",
        )
        what = f"aux states in the order {ids}"
        yield Hypothesis(
            "aux_order", what, change, material.as_is, material.as_is.layer_ids, order=list(order)
        )


def layer_repairs(material: Material) -> Iterator[Hypothesis]:
    """States of other layers, which may have to be recomputed."""
    now = material.as_is.layer_ids
    written = material.folder.config.get(IDS)
    for ids in other_layers(material):
        cause = "aux_layers_shifted" if by_one(now, ids) else "aux_layers_other"
        if written is None and now == material.target.default_layer_ids:
            cause = "aux_layers_default"
        change = Change(CONFIG, IDS, "absent" if written is None else str(written), str(ids))
        yield Hypothesis(cause, f"layers {ids}", change, replace(material.as_is, layer_ids=ids), ids)


def other_layers(material: Material) -> list[list[int]]:
    """Layers other than those that the engine takes: the stored ones, one below, one above, the default ones."""
    now = material.as_is.layer_ids
    candidates = [
        material.store_ids,
        [number - 1 for number in now],
        [number + 1 for number in now],
        material.target.default_layer_ids,
    ]
    found: list[list[int]] = []
    for ids in candidates:
        inside = len(ids) == len(now) and ids[0] >= 1 and ids[-1] < material.target.num_layers
        if inside and ids != now and ids not in found:
            found.append(ids)
    return found


def by_one(ids: list[int], others: list[int]) -> bool:
    """Whether all ids differ by one in the same direction."""
    return {there - here for here, there in zip(ids, others, strict=True)} in ({1}, {-1})


def _json(value: bool) -> str:
    return str(value).lower()
