"""What the rest of the pipeline knows about the target: models/profile.json."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from eyas.errors import ArtifactError
from eyas.files import write_json


@dataclass(frozen=True)
class ThinkFormat:
    """How the target's thinking stands in its turns: an entry of `think_formats`, with the ids of this tokenizer.

    A turn with thinking on, as prompt and generated tokens follow each other:
    `on_tail [gap_before_start start] gap_after_start R gap_before_end end gap_after_end C end-of-turn`, where R is the
    reasoning, C the answer, and the part in brackets belongs to `on_tail` if `prefilled`.
    """

    family: str
    """Name of the entry; `derived` if tokenizer and template gave it all."""
    start: str
    """The opening marker, as text. One added token for most families, several tokens for channels."""
    end: str
    start_ids: list[int]
    end_ids: list[int]
    prefilled: bool
    """With thinking on, the prompt ends with the opening marker, which is then prompt and not generated."""
    gap_before_start: str = ""
    """Whitespace that the target writes around the markers. What servers and clients do to it differs, so it decides
    nothing where ids are known."""
    gap_after_start: str = ""
    gap_before_end: str = ""
    gap_after_end: str = ""
    gap_after_start_ids: list[int] = field(default_factory=list)
    """Ids of `gap_after_start`, as a prompt has them that ends with the opening marker and its gap."""
    implicit_ends: list[str] = field(default_factory=list)
    """Openings of a tool section that end the thinking without `end`."""
    implicit_end_ids: list[list[int]] = field(default_factory=list)
    """Ids of `implicit_ends`, in the same order."""
    answer_start: str = ""
    """Opens an answer that no thinking precedes; empty unless the target writes one (channels)."""
    answer_start_ids: list[int] = field(default_factory=list)
    on_kwargs: dict[str, Any] = field(default_factory=dict)
    """chat_template_kwargs that switch thinking on; empty if the template has no switch."""
    off_kwargs: dict[str, Any] | None = None
    """chat_template_kwargs that switch it off; null if the template can't."""
    default_on: bool = True
    """Whether the template without arguments asks for thinking."""
    on_tail_ids: list[int] = field(default_factory=list)
    """What the template appends to ask for an answer with thinking on."""
    off_tail_ids: list[int] | None = None
    """The same with thinking off; null if it can't be switched off."""
    off_prefill: str = ""
    """What stands behind the role header in the prompt when thinking is off: an empty block, an end marker, nothing."""
    parsers: dict[str, str] = field(default_factory=dict)
    """Names of the reasoning parsers that serve this family, by server: vllm, sglang."""

    @property
    def openings(self) -> list[list[int]]:
        """The ends of a prompt that leave the thinking open: the opening marker, bare and with its gap."""
        with_gap = [*self.start_ids, *self.gap_after_start_ids]
        return [self.start_ids] if with_gap == self.start_ids else [self.start_ids, with_gap]

    @property
    def marker_ids(self) -> set[int]:
        """Every id of both markers."""
        return {*self.start_ids, *self.end_ids}


@dataclass(frozen=True)
class ToolFormat:
    """The markers around the tool calls of a turn."""

    starts: list[str]
    """Openings of a tool section; the first one found opens it."""
    start_ids: list[list[int]]
    """Ids of `starts`, in the same order."""
    end: str
    """Closes a section; empty if the end of the turn does."""
    end_ids: list[int]


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
    think: ThinkFormat | None
    """Null if the target does not think."""
    generation_prompt_ids: list[int]
    """The ids that the chat template, without arguments, appends to ask for an answer."""
    chat_template_digest: str
    trust_remote_code: bool = False
    """Whether the target can't be loaded without running Python code that comes with it."""
    family: str = "derived"
    """The format entry that fits tokenizer and template, also of a target that does not think."""
    tools: ToolFormat | None = None
    """Null if the target has no markers around tool calls."""

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
        profile: TargetProfile = _build(cls, values, path, hint)
        return profile

    def write(self, path: Path) -> None:
        """Write it atomically."""
        write_json(path, asdict(self))


NESTED: dict[str, type[ThinkFormat] | type[ToolFormat]] = {"think": ThinkFormat, "tools": ToolFormat}
"""Fields of a profile that are dataclasses themselves, or null."""


def _build(schema: Any, values: Any, path: Path, hint: str, within: str = "") -> Any:
    """A dataclass of a mapping that has exactly its fields."""
    expected = {entry.name for entry in fields(schema)}
    if not isinstance(values, dict) or set(values) != expected:
        different = sorted(expected.symmetric_difference(values)) if isinstance(values, dict) else "all"
        raise ArtifactError(
            f"the target profile has other fields than this version: {within}{different}",
            where=str(path),
            hint=hint,
        )
    nested = {
        key: _build(NESTED[key], values[key], path, hint, f"{key} ")
        for key in (NESTED if schema is TargetProfile else ())
        if values[key] is not None
    }
    return schema(**{**values, **nested})
