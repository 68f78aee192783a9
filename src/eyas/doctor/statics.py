"""What can be read off a folder without running it: against its target, its own tensors, and the stored states."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from eyas.doctor.hypothesis import Change
from eyas.doctor.material import Material
from eyas.doctor.repairs import CONFIG, WEIGHTS
from eyas.referee.folder import IDS
from eyas.referee.tensorfile import StoredTensor

FAULT = "fault"
"""Certain: the engine does not compute what the folder was made for."""
DOUBT = "doubt"
"""Right or wrong, depending on how the drafter was trained; hypotheses decide."""
NOTE = "note"
"""Does no harm here."""

MISSING = {"norm": "final_norm", "lm_head": "head_missing", "d2t": "d2t_ignored"}
ROWS_COMPARED = 4096
ROUNDING = 2**-7
"""Relative difference that bfloat16 makes."""


@dataclass(frozen=True)
class Finding:
    """One thing that was read off a folder."""

    severity: str
    """FAULT | DOUBT | NOTE."""
    cause: str | None
    """Key of CAUSES, if it is one of them."""
    text: str
    change: Change | None = None


def findings(material: Material, engine: str) -> list[Finding]:
    """Everything that is odd about a folder, faults first."""
    found = [
        each
        for check in (_tensors, _vocab, _weights, _shared, _trained, _layers, _config)
        for each in check(material)
    ]
    if engine == "sglang" and material.folder.config.get("norm_before_residual"):
        text = "norm_before_residual is on, which SGLang does not know: it computes without"
        change = Change(CONFIG, "norm_before_residual", "true", "serve it with vLLM, or train with false")
        found.append(Finding(FAULT, "norm_before_residual", text, change))
    return sorted(found, key=lambda each: (FAULT, DOUBT, NOTE).index(each.severity))


def _tensors(material: Material) -> Iterator[Finding]:
    reading = material.as_is
    for name in reading.missing:
        shape = {**reading.shape.tensors(), **reading.shape.norms_before_fc(reading.flags)}.get(name)
        instead = {"lm_head": "the first rows of the target's", "d2t": "draft ids as target ids"}.get(
            name, "ones" if shape and len(shape) == 1 else "memory as it was"
        )
        text = f"{name} is not in the file; the engine takes {instead} and says nothing"
        change = Change(WEIGHTS, name, "not in the file", "the trained tensor")
        yield Finding(FAULT, MISSING.get(name, "tensor_missing"), text, change)
    for name in reading.unread:
        if "input_norm" in name or "fc_norm" in name:
            flag = "norm_before_fc" if "input_norm" in name else "fc_norm"
            text = f"{name} is in the file, but {flag} is off: the engine drops it and says nothing"
            yield Finding(FAULT, flag, text, Change(CONFIG, flag, "false", "true"))


def _vocab(material: Material) -> Iterator[Finding]:
    reading, tensors = material.as_is, material.folder.tensors
    ids, vocab = reading.target_ids, material.target.vocab_size
    if reading.shape.vocab_size != vocab:
        change = Change(CONFIG, "vocab_size", str(reading.shape.vocab_size), str(vocab))
        text = f"vocab_size is {reading.shape.vocab_size}, the target has {vocab}"
        yield Finding(FAULT, None, text, change)
    if "d2t" not in tensors or len(ids) == vocab:
        return
    d2t = tensors["d2t"].array()
    if ids.max() >= vocab or ids.min() < 0 or len(np.unique(ids)) < len(ids):
        absolute = d2t.min() >= 0 and d2t.max() < vocab and len(np.unique(d2t)) == len(d2t)
        change = Change(WEIGHTS, "d2t", "target ids", "offsets: target id minus draft id")
        text = f"draft id + d2t reaches {ids.max()}, the target has {vocab} ids, {len(np.unique(ids))} are different"
        yield Finding(FAULT, "d2t_absolute" if absolute else "d2t_other", text, change if absolute else None)
    t2d = tensors["t2d"].array() if "t2d" in tensors else None
    if t2d is not None and not np.array_equal(np.flatnonzero(t2d), np.sort(ids)):
        yield Finding(DOUBT, "d2t_other", "d2t and t2d name different tokens; engines read d2t alone")


def _weights(material: Material) -> Iterator[Finding]:
    reading, tensors, target = material.as_is, material.folder.tensors, material.target
    for name, tensor in tensors.items():
        if name != "t2d" and name != "d2t" and "embed" not in name:
            values = tensor.array()
            if not np.isfinite(values).all():
                yield Finding(FAULT, None, f"{name} holds values that are not finite")
            elif not values.any():
                yield Finding(FAULT, None, f"{name} is all zeros: it was never loaded or trained")
    kinds = {tensor.dtype for name, tensor in tensors.items() if name not in ("d2t", "t2d")}
    names = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}
    if {names.get(kind) for kind in kinds} != {target.dtype}:
        yield Finding(
            NOTE, None, f"weights are {', '.join(sorted(kinds))}; the engine converts them to {target.dtype}"
        )
    if reading.shape.target_hidden_size != target.hidden_size:
        text = (
            f"target_hidden_size is {reading.shape.target_hidden_size}, the target's is {target.hidden_size}"
        )
        change = Change(
            CONFIG, "target_hidden_size", str(reading.shape.target_hidden_size), str(target.hidden_size)
        )
        yield Finding(FAULT, None, text, change)


def _shared(material: Material) -> Iterator[Finding]:
    """What may be the target's, or must be."""
    tensors, target = material.folder.tensors, material.target
    if "lm_head.weight" in tensors and head_is_targets(material):
        text = "lm_head is row by row the target's: right only if training left it frozen"
        yield Finding(
            DOUBT, "head_of_target", text, Change(WEIGHTS, "lm_head.weight", "the target's", "its own")
        )
    own = tensors.get("embed_tokens.weight")
    if own is not None and own.shape == target.embedding.shape and not _same(own, target.embedding):
        text = "embed_tokens is in the file and not the target's: vLLM keeps it, SGLang takes the target's"
        yield Finding(DOUBT, "embedding", text, Change(WEIGHTS, "embed_tokens.weight", "its own", "left out"))


def _trained(material: Material) -> Iterator[Finding]:
    """Against the tensors that training wrote, up to rounding."""
    for name, trained in material.trained.items():
        own = material.folder.tensors.get(name)
        if name in ("d2t", "t2d") or own is None or own.shape != trained.shape:
            continue
        if not np.allclose(own.array(), trained.array(), rtol=ROUNDING, atol=1e-6):
            from_target = name == "lm_head.weight" and head_is_targets(material)
            text = f"{name} is not the trained one" + (" but the target's" if from_target else "")
            change = Change(WEIGHTS, name, "another tensor", "the trained tensor")
            yield Finding(FAULT, "head_of_target" if from_target else None, text, change)


def head_is_targets(material: Material) -> bool:
    """Whether the head holds exactly the target's rows of the draft vocabulary."""
    reading, head = material.as_is, material.target.head
    ids = reading.target_ids
    if ids.max() >= head.shape[0] or ids.min() < 0 or head.shape[1] != reading.shape.hidden_size:
        return False
    rows = np.unique(np.linspace(0, len(ids) - 1, min(ROWS_COMPARED, len(ids))).astype(int))
    own, theirs = np.asarray(reading.head[rows]), np.asarray(head[ids[rows]])
    return bool(np.allclose(own, theirs, rtol=ROUNDING, atol=1e-6))


def _same(own: StoredTensor, theirs: object) -> bool:
    rows = np.unique(np.linspace(0, own.shape[0] - 1, ROWS_COMPARED).astype(int))
    return bool(np.array_equal(own[rows], theirs[rows]))  # type: ignore[index]


def _layers(material: Material) -> Iterator[Finding]:
    config, ids, last = material.folder.config, material.as_is.layer_ids, material.target.num_layers
    top, nested = config.get(IDS), material.folder.nested.get(IDS)
    change = Change(CONFIG, IDS, str(top or nested or "absent"), str(material.store_ids))
    if ids[0] < 0 or ids[-1] > last:
        yield Finding(FAULT, "aux_layers_other", f"layers {ids} are not all within 0..{last}", change)
    elif ids != material.store_ids:
        text = f"the engine takes the states of layers {ids}; those of {material.store_ids} were stored"
        yield Finding(DOUBT, None, text, change)
    if top and list(top) != sorted(top):
        yield Finding(DOUBT, "aux_order", f"{IDS} is {top}: vLLM sorts it, so fc gets {sorted(top)}", change)
    if top is None and nested is None:
        text = f"{IDS} is absent: engines take their default layers {ids}"
        yield Finding(NOTE if ids == material.store_ids else DOUBT, "aux_layers_default", text, change)
    if top is None and nested is not None:
        text = "layer ids are nested only: vLLM's V1 runner takes them as they are, V2 ignores them, SGLang adds one"
        yield Finding(DOUBT, "aux_layers_default", text, change)


def _config(material: Material) -> Iterator[Finding]:
    reading, target = material.as_is, material.target
    if reading.rope.scaling != target.rope.scaling or reading.rope.theta != target.rope.theta:
        cause = "rope_scaling" if reading.rope.scaling != target.rope.scaling else "rope_theta"
        text = f"rope has {reading.rope.text}; the target's has {target.rope.text}"
        yield Finding(DOUBT, cause, text, Change(CONFIG, cause, reading.rope.text, target.rope.text))
    if reading.shape.max_position < target.max_position_embeddings:
        text = (
            f"max_position_embeddings is {reading.shape.max_position}, the target's {target.max_position_embeddings}: "
            "vLLM 0.32 raises it, other engines crash or lose acceptance beyond"
        )
        yield Finding(NOTE, None, text)
    written = material.folder.config.get("norm_before_residual")
    if written is None:
        yield Finding(
            NOTE, "norm_before_residual", "norm_before_residual is not written; vLLM's default is false"
        )
