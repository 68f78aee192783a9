"""Reads a drafter's folder by the rules of an engine's loader, the silent ones included.

vLLM 0.32 (model_executor/models/llama_eagle3.py, transformers_utils/configs/speculators): any name with `t2d` is
dropped; `d2t` is added to the draft id and zero where missing; `midlayer.` is `layers.0.`; a missing tensor is no
error; other names than those known are one; `input_norm` is dropped unless norm_before_fc; the nested eagle_config
wins for norm_before_fc; layer ids at the top level win over nested ones, are sorted, and default to
{2, N//2, N-3}; a missing `embed_tokens` is the target's, one of its own is kept; without `lm_head` the target's
first rows are used.

SGLang 0.5 (models/llama_eagle3.py): unknown names are skipped; norm_before_residual does not exist; the target's
embedding always wins at equal width; layer ids are read from the nested eagle_config alone and name outputs of
layers, one below the input's id; legacy names of fc_norm are known; without `lm_head` memory decides.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from eyas.errors import ArtifactError
from eyas.referee.reading import Flags, Reading, Shape, checked, unset
from eyas.referee.rope import Rope
from eyas.referee.target import TargetSide, read_config
from eyas.referee.tensorfile import Floats, Integers, StoredTensor, Table, read_tensors

ENGINES = ("vllm", "sglang")
SPECULATORS = "speculators_model_type"
IDS = "eagle_aux_hidden_state_layer_ids"
LEGACY_NORMS = {"aux_norm_low": "fc_norm.0", "aux_norm_mid": "fc_norm.1", "aux_norm_high": "fc_norm.2"}
PARTS = ("midlayer.", "layers.0.", "self_attn.", "mlp.")


@dataclass(frozen=True)
class Folder:
    """A drafter's folder as it lies there, with its config brought into the plain form."""

    directory: Path
    config: dict[str, Any]
    tensors: dict[str, StoredTensor]

    @classmethod
    def read(cls, directory: Path) -> Folder:
        """Read config.json and the headers of the weights; the speculators format is flattened as vLLM does.

        Raises:
            ArtifactError: a file is missing or damaged, or the drafter is of another kind than EAGLE-3 on Llama.
        """
        config = read_config(directory)
        if SPECULATORS in config:
            config = _flattened(config, directory)
        wrong = [
            f"{key}: {config.get(key)!r}"
            for key, known in (("num_hidden_layers", (1, None)), ("hidden_act", ("silu", None)))
            if config.get(key) not in known
        ]
        wrong += [f"{key}: true" for key in ("attention_bias", "mlp_bias") if config.get(key)]
        if wrong or "Qwen3" in str(config.get("architectures")):
            raise ArtifactError(
                f"a drafter of this kind can't be simulated: {', '.join(wrong) or config['architectures']}",
                where=str(directory / "config.json"),
                hint="known are EAGLE-3 drafters of one Llama layer without biases",
            )
        return cls(directory, config, read_tensors(directory))

    @property
    def nested(self) -> Mapping[str, Any]:
        """`eagle_config`."""
        return self.config.get("eagle_config") or {}


def read_folder(directory: Path, target: TargetSide, engine: str = "vllm") -> Reading:
    """What an engine of ENGINES makes of a folder.

    Raises:
        ArtifactError: the engine would refuse it too, or it is of a kind that can't be simulated.
    """
    folder = Folder.read(directory)
    return read_as(folder, target, engine)


def read_as(folder: Folder, target: TargetSide, engine: str = "vllm") -> Reading:
    """What an engine of ENGINES makes of a folder that was read.

    Raises:
        ArtifactError: the engine would refuse it too.
    """
    try:
        return _Loader(folder, target, sglang=engine == "sglang").reading()
    except KeyError as error:
        raise ArtifactError(
            f"the drafter's config has no {error}", where=str(folder.directory / "config.json")
        ) from error


class _Loader:
    def __init__(self, folder: Folder, target: TargetSide, *, sglang: bool) -> None:
        self.folder, self.target, self.sglang = folder, target, sglang
        self.flags = _flags(folder, sglang=sglang)
        self.shape = Shape.of_config(folder.config, _aux_count(folder))
        self.missing: list[str] = []
        self.unread: list[str] = []

    def reading(self) -> Reading:
        wanted = {**self.shape.tensors(), **self.shape.norms_before_fc(self.flags)}
        found: dict[str, StoredTensor] = {}
        for name, tensor in self.folder.tensors.items():
            place = self._place(name, wanted)
            if place is None:
                self.unread.append(name)
                continue
            if place in wanted:
                checked(name, tensor.shape, wanted[place], str(self.folder.directory))
            found[place] = tensor
        self.missing += [name for name in wanted if name not in found]
        return Reading(
            shape=self.shape,
            flags=self.flags,
            layer_ids=self._layer_ids(),
            rope=Rope.of_config(self.folder.config),
            weights={
                name: found[name].array() if name in found else unset(shape) for name, shape in wanted.items()
            },
            head=self._head(found),
            target_ids=self._target_ids(found),
            embedding=self._embedding(found),
            missing=self.missing,
            unread=self.unread,
        )

    def _place(self, name: str, wanted: Mapping[str, Any]) -> str | None:
        """Which parameter takes a tensor; None: it is dropped."""
        if "t2d" in name or "mask_hidden" in name:
            return None
        for own in ("d2t", "lm_head", "embed_tokens"):
            if own in name:
                return own
        place = name.removesuffix(".weight")
        for part in PARTS:
            place = place.removeprefix(part)
        if self.sglang:
            place = LEGACY_NORMS.get(place, place)
        if place in wanted:
            return place
        if self.sglang or (place == "input_norm" and not self.flags.norm_before_fc):
            return None
        raise ArtifactError(
            f"vLLM has no parameter for the tensor {name}",
            where=str(self.folder.directory),
            hint="a flag of the config that calls for it may be off",
        )

    def _layer_ids(self) -> list[int]:
        top, nested = self.folder.config.get(IDS), self.folder.nested.get(IDS)
        if self.sglang:
            return sorted(number + 1 for number in nested) if nested else self.target.default_layer_ids
        return sorted(set(top or nested or self.target.default_layer_ids))

    def _target_ids(self, found: Mapping[str, StoredTensor]) -> Integers:
        ids = np.arange(self.shape.draft_vocab_size)
        if self.shape.draft_vocab_size == self.target.vocab_size:
            return ids
        if "d2t" not in found:
            self.missing.append("d2t")
            return ids
        checked("d2t", found["d2t"].shape, ids.shape, str(self.folder.directory))
        moved: Integers = ids + found["d2t"].array()
        return moved

    def _head(self, found: Mapping[str, StoredTensor]) -> Table:
        shape = (self.shape.draft_vocab_size, self.shape.hidden_size)
        if "lm_head" in found:
            checked("lm_head", found["lm_head"].shape, shape, str(self.folder.directory))
            return found["lm_head"].array()
        self.missing.append("lm_head")
        if self.sglang and self.folder.config.get("draft_vocab_size", 0) is not None:
            return unset(shape)
        rows: Floats = self.target.head[: shape[0]]
        checked("the target's lm_head", rows.shape, shape, str(self.folder.directory))
        return rows

    def _embedding(self, found: Mapping[str, StoredTensor]) -> Table:
        own = found.get("embed_tokens")
        same_width = self.target.hidden_size == self.shape.hidden_size
        if own is None or (self.sglang and same_width):
            if not same_width:
                raise ArtifactError(
                    f"the drafter is {self.shape.hidden_size} wide, its target {self.target.hidden_size}, and it "
                    "brings no embedding",
                    where=str(self.folder.directory),
                )
            return self.target.embedding
        return own


def _flattened(config: dict[str, Any], directory: Path) -> dict[str, Any]:
    """A speculators config in the plain form; absent flags are what vLLM takes them for."""
    if config[SPECULATORS] != "eagle3" or "transformer_layer_config" not in config:
        raise ArtifactError(
            f"a speculators drafter of type {config[SPECULATORS]!r} can't be simulated",
            where=str(directory / "config.json"),
        )
    flat = {
        **config["transformer_layer_config"],
        "architectures": config.get("architectures"),
        "draft_vocab_size": config.get("draft_vocab_size"),
        "norm_before_residual": config.get("norm_before_residual", True),
        **{name: config.get(name, False) for name in ("norm_before_fc", "fc_norm", "norm_output")},
    }
    extra = {name: config[name] for name in ("target_hidden_size", IDS) if config.get(name)}
    return {**flat, **extra}


def _flags(folder: Folder, *, sglang: bool) -> Flags:
    config, nested = folder.config, folder.nested
    flags = Flags(
        norm_before_fc=bool(nested.get("norm_before_fc", config.get("norm_before_fc", False))),
        fc_norm=bool(config.get("fc_norm", False)),
        norm_before_residual=bool(config.get("norm_before_residual", False)),
        norm_output=bool(config.get("norm_output", False)),
    )
    if not sglang:
        return flags
    legacy = nested.get("use_aux_norm", config.get("use_aux_norm", False))
    own = nested.get("fc_norm", flags.fc_norm) or legacy
    return replace(flags, norm_before_residual=False, fc_norm=bool(own))


def _aux_count(folder: Folder) -> int:
    """vLLM counts the nested list and not the one at the top level; SGLang likewise in its model."""
    return int(folder.config.get("num_aux_hidden_states") or len(folder.nested.get(IDS) or (0, 0, 0)))
