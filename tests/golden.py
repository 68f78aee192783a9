"""Golden targets: for each family of think formats a tokenizer, a chat template and turns with hand-made ids.

Every id of a golden turn is spelled out token by token against the table of golden_ids and the family's markers;
neither tokenizer nor template takes part. The kind of each token (eyas.tokenkinds) is written down with it:
M think marker, R reasoning and the whitespace up to its markers, A answer and other whitespace, T tool section with its
markers, E end of turn. Prompts are kind 0, also where they end with an opening marker.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from eyas.target.bring import Origin
from eyas.target.params import TargetParams
from eyas.target.profile import build_profile
from eyas.target.spec import TargetProfile
from tests.golden_ids import ids_of, write_tokenizer

KINDS = {"M": 1, "R": 2, "A": 3, "T": 4, "E": 5}
VOCAB_SIZE = 1000

QUESTION = ["Two", " plus", " two", "?"]
THOUGHT = ["It", " is", " easy", "."]
ANSWER = ["Four", "."]
GREETING, REPLY = ["Hello"], ["Hi", "!"]


def user(tokens: Iterable[str] = QUESTION) -> dict[str, Any]:
    return {"role": "user", "content": "".join(tokens)}


def assistant(content: str = "Four.", **more: Any) -> dict[str, Any]:
    """A finished turn of the history, with its thinking."""
    return {"role": "assistant", "content": content, "reasoning": "It is easy.", **more}


def call(call_id: str = "functions.add:0") -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": "add", "arguments": "{}"}}


CUT = ["It", " is"]
HISTORY = [user(), assistant(), user(GREETING)]
TOOL_LOOP = [
    user(),
    assistant("", tool_calls=[call()]),
    {"role": "tool", "tool_call_id": call()["id"], "content": "4"},
]
CALLED: dict[str, Any] = {"finish_reason": "tool_calls", "content": None, "tool_calls": [call()]}
CUT_SHORT: dict[str, Any] = {"finish_reason": "length", "reasoning": "It is", "content": None}
GREETED: dict[str, Any] = {"messages": [user(GREETING)], "reasoning": None, "content": "Hi!"}


@dataclass(frozen=True)
class GoldenTurn:
    """One generated turn and all that is known about it."""

    name: str
    """thinking, cut, no_thinking, tool_call, history, tool_loop, and variants of them."""
    messages: list[dict[str, Any]]
    template_kwargs: dict[str, Any]
    prompt_ids: list[int]
    generated_ids: list[int]
    kinds: list[int]
    """Of prompt and generated ids."""
    text: str
    """The generated ids as text, special tokens included: what the target wrote."""
    reasoning: str | None
    """The thinking without markers and without the whitespace next to them."""
    content: str | None
    """The answer, likewise."""
    finish_reason: str
    tool_calls: list[dict[str, Any]] | None = None
    opened: bool = False
    """The prompt ends inside thinking."""

    @property
    def truncated(self) -> bool:
        return self.finish_reason == "length"


_PROFILES: dict[tuple[Any, ...], TargetProfile] = {}


@dataclass(frozen=True)
class Family:
    """A small target of a family."""

    name: str
    """Of the entry that must fit."""
    markers: dict[str, int]
    """Added tokens."""
    special: list[str]
    """Those of them that are special; think markers mostly are not."""
    template: str
    eos: list[str]
    """Eos tokens of the generation config."""
    turns: list[GoldenTurn] = field(default_factory=list)

    def tokenizer_dir(self, tmp_path: Path) -> Path:
        """A model folder without weights below `tmp_path`: tokenizer, template, configs. Written once."""
        directory = tmp_path / self.name
        if not directory.exists():
            write_tokenizer(directory, self.markers, self.special, self.template, self.eos[0])
            (directory / "config.json").write_text(json.dumps(CONFIG))
            eos = {"eos_token_id": [self.markers[token] for token in self.eos]}
            (directory / "generation_config.json").write_text(json.dumps(eos))
        return directory

    def profile(self, tmp_path: Path, **params: Any) -> TargetProfile:
        """What the target stage finds out about the folder; the same wherever it lies."""
        key = (self.name, *sorted(params.items()))
        if key not in _PROFILES:
            directory = self.tokenizer_dir(tmp_path)
            origin = Origin(f"folder:{self.name}", None, self.name)
            target = TargetParams(source="folder", name=str(directory), **params)
            _PROFILES[key] = build_profile(directory, origin, target)
        return _PROFILES[key]

    def turn(self, name: str) -> GoldenTurn:
        (found,) = [turn for turn in self.turns if turn.name == name]
        return found


CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 8,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "vocab_size": VOCAB_SIZE,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
}


def golden(
    markers: Mapping[str, int],
    name: str,
    prompt: Iterable[str],
    generated: Iterable[tuple[str, list[str]]],
    *,
    messages: list[dict[str, Any]] | None = None,
    finish_reason: str = "stop",
    reasoning: str | None = "It is easy.",
    content: str | None = "Four.",
    kwargs: Mapping[str, Any] | None = None,
    tool_calls: list[dict[str, Any]] | None = None,
    opened: bool = False,
) -> GoldenTurn:
    """A turn of spelled-out tokens: `generated` gives them in groups of one kind."""
    prompt_ids = ids_of(prompt, markers)
    groups = list(generated)
    tokens = [token for _, group in groups for token in group]
    kinds = [KINDS[kind] for kind, group in groups for _ in group]
    return GoldenTurn(
        name=name,
        messages=[user()] if messages is None else messages,
        template_kwargs=dict(kwargs or {}),
        prompt_ids=prompt_ids,
        generated_ids=ids_of(tokens, markers),
        kinds=[0] * len(prompt_ids) + kinds,
        text="".join(tokens),
        reasoning=reasoning,
        content=content,
        finish_reason=finish_reason,
        tool_calls=tool_calls,
        opened=opened,
    )
