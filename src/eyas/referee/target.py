"""What a drafter borrows from its target: sizes, rope, embedding and head, straight from the target's folder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eyas.errors import ArtifactError
from eyas.referee.rope import Rope
from eyas.referee.tensorfile import StoredTensor, Table, read_tensors

EMBEDDING = "embed_tokens.weight"
HEAD = "lm_head.weight"


@dataclass(frozen=True)
class TargetSide:
    """V target vocabulary, H target hidden size."""

    num_layers: int
    hidden_size: int
    vocab_size: int
    max_position_embeddings: int
    rope: Rope
    dtype: str
    embedding: Table
    """[V, H]"""
    head: Table
    """[V, H]; the embedding where both are tied."""

    @classmethod
    def read(cls, directory: Path) -> TargetSide:
        """From config.json and the safetensors of a Hugging Face folder; tensors stay on disk.

        Raises:
            ArtifactError: a file, key or tensor is missing.
        """
        config = read_config(directory)
        config = {**config, **(config.get("text_config") or {})}
        tensors = read_tensors(directory)
        embedding = _named(tensors, EMBEDDING, directory)
        tied = config.get("tie_word_embeddings", False)
        try:
            return cls(
                num_layers=config["num_hidden_layers"],
                hidden_size=config["hidden_size"],
                vocab_size=embedding.shape[0],
                max_position_embeddings=config["max_position_embeddings"],
                rope=Rope.of_config(config),
                dtype=str(config.get("dtype") or config.get("torch_dtype") or "float32"),
                embedding=embedding,
                head=embedding if tied else _named(tensors, HEAD, directory),
            )
        except KeyError as error:
            raise ArtifactError(f"the target's config has no {error}", where=str(directory)) from error

    @property
    def default_layer_ids(self) -> list[int]:
        """What vLLM and SGLang capture if nobody says which: hidden_states indices (SafeAILab/EAGLE)."""
        return [2, self.num_layers // 2, self.num_layers - 3]


def read_config(directory: Path) -> dict[str, Any]:
    """config.json of a folder.

    Raises:
        ArtifactError: it is missing or no JSON object.
    """
    path = directory / "config.json"
    try:
        config = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise ArtifactError(f"the config can't be read: {error}", where=str(path)) from error
    if not isinstance(config, dict):
        raise ArtifactError("the config is no JSON object", where=str(path))
    return config


def _named(tensors: Mapping[str, StoredTensor], suffix: str, directory: Path) -> StoredTensor:
    names = [name for name in tensors if name == suffix or name.endswith(f".{suffix}")]
    if len(names) != 1:
        raise ArtifactError(
            f"the target has {len(names)} tensors named {suffix}, not one",
            where=str(directory),
            hint="targets of the Llama and Qwen kind are supported",
        )
    return tensors[names[0]]
