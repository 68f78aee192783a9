"""What the rest of the pipeline knows about the target: models/profile.json."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from eyas.errors import ArtifactError
from eyas.files import write_json


@dataclass(frozen=True)
class TargetProfile:
    """Sizes, ids and formats of the target, read from its files once and never guessed again."""

    name: str
    """Name under which the target is served."""
    source: str
    """Where it came from, as `source:name`; no local path."""
    revision: str | None
    """Package version or hub commit; null for a folder."""
    digest: str
    """SHA-256 over all files of models/target: weights, config, tokenizer."""
    architecture: str
    model_type: str
    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    vocab_size: int
    """Rows of the embedding, which may be more than the tokenizer has tokens."""
    rms_norm_eps: float
    hidden_act: str
    max_position_embeddings: int
    rope_theta: float
    rope_scaling: dict[str, Any] | None
    """Scaled rope of the config without its theta; null for plain rope."""
    tie_word_embeddings: bool
    dtype: str
    aux_layer_ids: list[int]
    """Hugging Face hidden_states indices (= vLLM ids), ascending."""
    bos_token_id: int | None
    pad_token_id: int | None
    end_of_turn_ids: list[int]
    """Every id that ends a generated turn: eos ids of the generation config and the chat template's own."""
    special_ids: list[int]
    """All special and added ids of the tokenizer, ascending."""
    think_start_id: int | None
    """Null if the target has no think markers."""
    think_end_id: int | None
    generation_prompt_ids: list[int]
    """The ids that the chat template appends to ask for an answer."""
    chat_template_digest: str
    trust_remote_code: bool = False
    """Whether the target can't be loaded without running Python code that comes with it."""

    @classmethod
    def read(cls, path: Path) -> TargetProfile:
        """Read a profile.

        Raises:
            ArtifactError: no such file, not JSON, or not exactly the fields of this version.
        """
        hint = "dvc repro target"
        try:
            values = json.loads(path.read_bytes())
        except FileNotFoundError as error:
            raise ArtifactError("there is no target profile", where=str(path), hint=hint) from error
        except ValueError as error:
            raise ArtifactError(
                f"the target profile is not JSON: {error}", where=str(path), hint=hint
            ) from error
        expected = {field.name for field in fields(cls)}
        if not isinstance(values, dict) or set(values) != expected:
            different = sorted(expected.symmetric_difference(values)) if isinstance(values, dict) else "all"
            raise ArtifactError(
                f"the target profile has other fields than this version: {different}",
                where=str(path),
                hint=hint,
            )
        return cls(**values)

    def write(self, path: Path) -> None:
        """Write it atomically."""
        write_json(path, asdict(self))
