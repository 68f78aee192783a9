"""The shape of a drafter and its EAGLE-3 flags, as stored beside its weights."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from eyas.errors import ArtifactError
from eyas.files import write_json


@dataclass(frozen=True)
class DrafterConfig:
    """One Llama layer over fused aux hidden states (EAGLE-3, arXiv:2503.01840).

    One layer only: vLLM and SGLang normalise the layers above the first differently, so a deeper drafter
    would be right in at most one of them.
    """

    hidden_size: int
    target_hidden_size: int
    num_aux_layers: int
    intermediate_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    vocab_size: int
    """The target's vocabulary."""
    draft_vocab_size: int
    rms_norm_eps: float
    rope_theta: float
    rope_scaling: dict[str, Any] | None
    """A `rope_parameters` entry without its theta, as transformers 5 writes it; null for plain rope."""
    max_position_embeddings: int
    aux_layer_ids: list[int]
    """Hugging Face `hidden_states` index (vLLM's id), ascending."""
    norm_before_fc: bool = False
    """RMSNorm over the concatenated aux hidden states, before fc (tensor `input_norm`)."""
    fc_norm: bool = False
    """One RMSNorm per aux hidden state, before fc (tensors `fc_norm.i`, EAGLE-3.1)."""
    norm_before_residual: bool = False
    """The residual stream starts from the normed feature. SGLang 0.5 can't serve it."""
    norm_output: bool = False
    """The next draft step is fed the normed output instead of the plain one."""

    def __post_init__(self) -> None:
        if len(self.aux_layer_ids) != self.num_aux_layers:
            raise ValueError(f"{self.num_aux_layers} aux layers, but ids {self.aux_layer_ids}")
        if self.norm_before_fc and self.fc_norm:
            raise ValueError("norm_before_fc and fc_norm exclude each other: no engine applies both")
        if self.num_attention_heads % self.num_key_value_heads:
            raise ValueError(
                f"{self.num_attention_heads} attention heads are not a multiple of {self.num_key_value_heads} kv heads"
            )
        if self.num_aux_layers * self.target_hidden_size == self.hidden_size:
            raise ValueError("fused width equals hidden_size: SGLang tells draft steps apart by this width")

    @classmethod
    def read(cls, path: Path) -> DrafterConfig:
        """Read config.json of a drafter directory.

        Raises:
            ArtifactError: missing file, or keys that do not fit.
        """
        try:
            values = json.loads(path.read_text())
        except FileNotFoundError as error:
            raise ArtifactError("no drafter config here", where=str(path), hint="dvc repro train") from error
        except ValueError as error:
            raise ArtifactError(
                f"the drafter config is not JSON: {error}", where=str(path), hint="dvc repro train"
            ) from error
        known = {field.name for field in fields(cls)}
        if not isinstance(values, dict) or set(values) != known:
            wrong = sorted(set(values) ^ known) if isinstance(values, dict) else "all"
            raise ArtifactError(f"drafter config: missing or unknown keys {wrong}", where=str(path))
        try:
            return cls(**values)
        except ValueError as error:
            raise ArtifactError(f"drafter config: {error}", where=str(path)) from error

    def write(self, path: Path) -> None:
        write_json(path, asdict(self))

    @property
    def rope_parameters(self) -> dict[str, Any]:
        """Rope settings as transformers 5 takes them."""
        return {"rope_type": "default", "rope_theta": self.rope_theta, **(self.rope_scaling or {})}
