"""Reading a drafter of any known format: plain vLLM or SGLang, speculators, or the folder that training writes.

Published heads differ in names, in what they leave out and in where they say it. What a folder does not say is taken
as its engine would take it, and said; what can't be right is refused.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from eyas.drafter.config import DrafterConfig
from eyas.drafter.formats import plain, speculators
from eyas.drafter.formats.draftmap import draft_ids
from eyas.drafter.formats.findings import Findings
from eyas.drafter.formats.folder import CONFIG, Folder, read_folder
from eyas.drafter.formats.imported import ImportedDrafter
from eyas.drafter.formats.layerids import KEY, nested, read_layer_ids, without_last_layer
from eyas.drafter.formats.llama import check_nested, check_target, read_llama
from eyas.drafter.formats.names import EMBEDDING, HEAD, drafter_tensors
from eyas.drafter.formats.shapes import weight_problems
from eyas.drafter.vocab import VocabMap
from eyas.target.spec import TargetProfile

if TYPE_CHECKING:
    from eyas.target.model import TargetHead

HINT = "it must be an EAGLE-3 drafter of one Llama layer for this target; see docs/export.md"
ROWS = 4096
SAME_EMBEDDING = 0.01
"""Relative difference (root mean square) up to which an embedding is the target's in another precision."""


def read_drafter(path: Path, profile: TargetProfile, head: TargetHead | None = None) -> ImportedDrafter:
    """Read a drafter for this target.

    With `head` an embedding in the file is compared with the target's, and a missing `lm_head` over the whole
    vocabulary is the target's.

    Raises:
        InputError: a file is missing or damaged, or the drafter can't be used with this target; names every reason.
        ArtifactError: the folder is one of training, and its config does not fit.
    """
    folder, found = read_folder(path), Findings(path)
    tensors = drafter_tensors(folder.tensors, found)
    d2t, t2d = tensors.pop("d2t", None), tensors.pop("t2d", None)
    kind = recognise(folder.config)
    config = _own(folder, profile, found) if kind == "eyas" else _foreign(folder, tensors, profile, found)
    found.check(HINT)
    assert config is not None
    _take_embedding(tensors, head, found)
    _take_head(tensors, config, head, found)
    ids = draft_ids(_array(d2t), _array(t2d), config.draft_vocab_size, config.vocab_size, found)
    found.problems.extend(weight_problems(tensors, config))
    found.check(HINT)
    vocab = VocabMap.of_ids(torch.from_numpy(ids), config.vocab_size)
    return ImportedDrafter(config, tensors, vocab, _name(kind, folder.config, config), found.assumptions)


def recognise(config: Mapping[str, Any]) -> str:
    """Which format a config.json is of: eyas, speculators, or plain."""
    if speculators.KIND in config or speculators.LAYER in config:
        return "speculators"
    own = {field.name for field in fields(DrafterConfig)}
    return "eyas" if "aux_layer_ids" in config and set(config) <= own else "plain"


def _name(kind: str, values: Mapping[str, Any], config: DrafterConfig) -> str:
    """A plain folder is SGLang's if its nested ids are counted as SGLang does."""
    if kind != "plain":
        return kind
    inner = nested(values).get(KEY)
    return "sglang" if inner is not None and inner != config.aux_layer_ids else "vllm"


def _own(folder: Folder, profile: TargetProfile, found: Findings) -> DrafterConfig:
    config = DrafterConfig.read(folder.directory / CONFIG)
    sizes = {name: getattr(config, name) for name in ("vocab_size", "target_hidden_size", "hidden_size")}
    check_target(sizes, profile, found)
    return config


def _foreign(
    folder: Folder, tensors: Mapping[str, Tensor], profile: TargetProfile, found: Findings
) -> DrafterConfig | None:
    if recognise(folder.config) == "speculators":
        values = speculators.flattened(folder.config, found)
        flags = speculators.speculators_flags(folder.config, found)
    else:
        values, flags = folder.config, plain.plain_flags(folder.config, found)
        check_nested(nested(folder.config), found)
    ids = read_layer_ids(folder.config, profile, found)
    ids = without_last_layer(ids, _width(tensors), profile, found)
    return read_llama(values, tensors, ids, flags, profile, found)


def _width(tensors: Mapping[str, Tensor]) -> int | None:
    fc = tensors.get("fc.weight")
    return int(fc.shape[1]) if fc is not None and fc.dim() == 2 else None


def _take_embedding(tensors: dict[str, Tensor], head: TargetHead | None, found: Findings) -> None:
    """Remove the embedding: a drafter reads the target's. Another one can't be kept."""
    own = tensors.pop(EMBEDDING, None)
    if own is None:
        return
    if head is None:
        found.assume(f"`{EMBEDDING}` is taken for the target's, which it was not compared with")
        return
    if own.shape != head.embedding.shape:
        found.refuse(
            f"tensor `{EMBEDDING}` has shape {list(own.shape)}, the target's {list(head.embedding.shape)}"
        )
        return
    difference = _difference(own, head.embedding)
    if not difference <= SAME_EMBEDDING:
        found.refuse(
            f"tensor `{EMBEDDING}` is not the target's embedding: they differ by {difference:.1%}. A drafter with an "
            "embedding of its own is not supported; an untrained one in its place is a fault of the export"
        )
    elif difference > 0:
        found.assume(
            f"`{EMBEDDING}` differs from the target's by {difference:.2%}, as by rounding: the target's is used"
        )


def _difference(own: Tensor, target: Tensor) -> float:
    """Root mean square of own - target relative to that of target, both [V, H]; in parts, since both may be large."""
    apart = size = 0.0
    for ours, theirs in zip(own.split(ROWS), target.split(ROWS), strict=True):
        apart += float((ours.float() - theirs.float()).square().sum(dtype=torch.float64))
        size += float(theirs.float().square().sum(dtype=torch.float64))
    return math.sqrt(apart / size) if size else math.inf


def _take_head(
    tensors: dict[str, Tensor], config: DrafterConfig, head: TargetHead | None, found: Findings
) -> None:
    if HEAD in tensors or config.draft_vocab_size != config.vocab_size or head is None:
        return  # where it is needed it counts among the missing tensors
    found.assume("there is no `lm_head`: it is the target's, as engines take it")
    tensors[HEAD] = head.lm_head.clone()


def _array(tensor: Tensor | None) -> NDArray[Any] | None:
    if tensor is None:
        return None
    return (tensor.float() if tensor.is_floating_point() else tensor).numpy()  # NumPy has no bfloat16
