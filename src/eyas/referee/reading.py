"""What an engine makes of a drafter's folder: its sizes, flags, layers and weights, as they will be computed with.

Letters: A aux layers, H hidden size, H_t target hidden size, D head size, V target vocabulary, Vd draft vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from eyas.errors import ArtifactError
from eyas.referee.rope import Rope
from eyas.referee.tensorfile import Floats, Integers, Table


@dataclass(frozen=True)
class Shape:
    """Sizes of a drafter."""

    hidden_size: int
    target_hidden_size: int
    intermediate_size: int
    heads: int
    kv_heads: int
    head_dim: int
    aux_layers: int
    vocab_size: int
    """The target's."""
    draft_vocab_size: int
    rms_norm_eps: float
    max_position: int

    @classmethod
    def of_config(cls, config: Mapping[str, Any], aux_layers: int) -> Shape:
        """From the keys of a Llama config.

        Raises:
            KeyError: one is missing.
        """
        heads = config["num_attention_heads"]
        hidden = config["hidden_size"]
        return cls(
            hidden_size=hidden,
            target_hidden_size=config.get("target_hidden_size") or hidden,
            intermediate_size=config["intermediate_size"],
            heads=heads,
            kv_heads=config.get("num_key_value_heads") or heads,
            head_dim=config.get("head_dim") or hidden // heads,
            aux_layers=aux_layers,
            vocab_size=config["vocab_size"],
            draft_vocab_size=config.get("draft_vocab_size") or config["vocab_size"],
            rms_norm_eps=config.get("rms_norm_eps", 1e-6),
            max_position=config.get("max_position_embeddings", 2048),
        )

    def tensors(self) -> dict[str, tuple[int, ...]]:
        """Name and shape of the tensors that every drafter has."""
        queries, values = self.heads * self.head_dim, self.kv_heads * self.head_dim
        hidden, inner = self.hidden_size, self.intermediate_size
        return {
            "fc": (hidden, self.aux_layers * self.target_hidden_size),
            "q_proj": (queries, 2 * hidden),
            "k_proj": (values, 2 * hidden),
            "v_proj": (values, 2 * hidden),
            "o_proj": (hidden, queries),
            "gate_proj": (inner, hidden),
            "up_proj": (inner, hidden),
            "down_proj": (hidden, inner),
            "input_layernorm": (hidden,),
            "hidden_norm": (hidden,),
            "post_attention_layernorm": (hidden,),
            "norm": (hidden,),
        }

    def norms_before_fc(self, flags: Flags) -> dict[str, tuple[int, ...]]:
        """Name and shape of the norms that flags call for."""
        width = self.aux_layers * self.target_hidden_size
        one = {"input_norm": (width,)} if flags.norm_before_fc else {}
        parts = {f"fc_norm.{i}": (self.target_hidden_size,) for i in range(self.aux_layers) if flags.fc_norm}
        return {**one, **parts}


@dataclass(frozen=True)
class Flags:
    """The four EAGLE-3.1 flags as the engine applies them."""

    norm_before_fc: bool = False
    fc_norm: bool = False
    norm_before_residual: bool = False
    norm_output: bool = False


@dataclass(frozen=True)
class Reading:
    """A drafter as an engine would run it. A fault is planted, or repaired, by replacing fields."""

    shape: Shape
    flags: Flags
    layer_ids: list[int]
    """hidden_states indices (vLLM's ids) of the aux states, in the order in which fc gets them."""
    rope: Rope
    weights: Mapping[str, Floats]
    """By the names of `Shape.tensors`. What the file lacks is what the engine would use: ones for norms, NaN for the
    rest, which no engine initialises."""
    head: Table
    """[Vd, H]"""
    target_ids: Integers
    """[Vd]: the target's id of each draft id; ids beyond V are never accepted."""
    embedding: Table
    """[V, H]"""
    positions_advance: bool = True
    """Whether each draft step stands one position further, as it must."""
    missing: list[str] = field(default_factory=list)
    """Tensors that the file lacks and the engine does without."""
    unread: list[str] = field(default_factory=list)
    """Tensors of the file that the engine drops without a word."""


def unset(shape: tuple[int, ...]) -> Floats:
    """A parameter that nothing was loaded into: norms start at ones, the rest is whatever memory holds."""
    return np.ones(shape, np.float32) if len(shape) == 1 else np.full(shape, np.nan, np.float32)


def checked(name: str, found: tuple[int, ...], wanted: tuple[int, ...], where: str) -> None:
    """Refuse a tensor of another shape.

    Raises:
        ArtifactError: shapes differ.
    """
    if found != wanted:
        raise ArtifactError(
            f"{name} has shape {list(found)}, the config asks for {list(wanted)}", where=where
        )
