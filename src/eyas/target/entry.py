"""Format entries: how a family of targets writes its turns, one small YAML file each (docs/think-formats.md).

An entry holds strings only. Ids come from the target's own tokenizer (`eyas.target.formats`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from eyas.config import build
from eyas.errors import ConfigError

FOLDER = Path(__file__).with_name("think_formats")
"""The entries that come with eyas; the name of a file is the name of its family."""
GUIDE = "docs/think-formats.md describes the keys"


@dataclass  # OmegaConf can't fill frozen dataclasses below an optional key
class Gaps:
    """Whitespace that the target writes around its markers; never part of them."""

    before_start: str = ""
    after_start: str = ""
    before_end: str = ""
    after_end: str = ""

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value.strip():
                raise ValueError(f"think.gaps.{name}: {value!r} is not whitespace")


@dataclass
class Mode:
    """How thinking is switched on or off."""

    kwargs: dict[str, Any] = field(default_factory=dict)
    """chat_template_kwargs of the switch; empty if the template needs none."""
    prefill: str = ""
    """What the template puts behind `tail`, at the end of the prompt."""


@dataclass
class ThinkEntry:
    """The thinking of a family."""

    start: str
    """The opening marker: begins and ends with an added token of the tokenizer, usually is one."""
    end: str
    """The end marker, likewise."""
    gaps: Gaps = field(default_factory=Gaps)
    enabled: Mode = field(default_factory=Mode)
    disabled: Mode | None = None
    """None if the template has no switch."""
    implicit_ends: list[str] = field(default_factory=list)
    """What ends thinking without the end marker: the opening of a tool section."""
    answer_start: str = ""
    """Opens an answer without thinking, if the target writes something there (channels)."""

    def __post_init__(self) -> None:
        for name in ("start", "end"):
            value = getattr(self, name)
            if not value.strip() or value != value.strip():
                raise ValueError(
                    f"think.{name}: {value!r} is not a marker; whitespace around it belongs to `gaps`"
                )
        if self.start == self.end:
            raise ValueError(f"think.end: {self.end!r} is also the opening marker")
        if self.enabled.prefill and self.start not in self.enabled.prefill:
            raise ValueError(
                f"think.enabled.prefill: {self.enabled.prefill!r} does not hold the opening marker {self.start!r}"
            )
        if self.disabled is not None and self.disabled == self.enabled:
            raise ValueError(
                "think.disabled: is the same as think.enabled; leave it out if there is no switch"
            )


@dataclass
class ToolEntry:
    """The markers around tool calls. Left out of the profile if the tokenizer does not have the first of them."""

    starts: list[str]
    end: str = ""
    """Empty if the end of the turn closes the section."""

    def __post_init__(self) -> None:
        if not self.starts or not all(self.starts):
            raise ValueError(f"tools.starts: {self.starts!r} holds no marker")


@dataclass
class FormatValues:
    """The content of an entry's file."""

    tail: str
    """The generation prompt without what a mode of thinking adds: the header of the assistant's turn."""
    end_of_turn: list[str]
    """Tokens that end a generated turn; those that the tokenizer lacks are left out, one must be there."""
    history_end: str | None = None
    """What the template writes behind an earlier answer if that is none of `end_of_turn`; empty: nothing."""
    think: ThinkEntry | None = None
    """None if the family does not think."""
    tools: ToolEntry | None = None
    parsers: dict[str, str] = field(default_factory=dict)
    """Reasoning parsers of the servers: vllm, sglang. Only for hints."""

    def __post_init__(self) -> None:
        if not self.tail:
            raise ValueError("tail: '' is not what a template appends to ask for an answer")
        if not self.end_of_turn or not all(self.end_of_turn):
            raise ValueError(f"end_of_turn: {self.end_of_turn!r} names no token")
        unknown = sorted(set(self.parsers) - {"vllm", "sglang"})
        if unknown:
            raise ValueError(f"parsers: {unknown[0]!r} is not one of vllm, sglang")


@dataclass(frozen=True)
class FormatEntry:
    """An entry and where it came from."""

    family: str
    path: Path
    values: FormatValues


def load_entry(path: Path) -> FormatEntry:
    """Read an entry.

    Raises:
        ConfigError: no such file, no YAML, unknown or missing key, wrong type or impossible value; names file and key.
    """
    try:
        content = OmegaConf.to_container(OmegaConf.load(path))
    except FileNotFoundError as error:
        raise ConfigError("there is no such think format", where=str(path), hint=_known()) from error
    except Exception as error:  # YAML has no common exception type across loaders
        raise ConfigError(f"the think format is not valid YAML: {error}", where=str(path)) from error
    try:
        return FormatEntry(path.stem, path, build(path.stem, FormatValues, content, path))
    except ConfigError as error:
        raise ConfigError(error.what, where=str(path), hint=error.hint or GUIDE) from error


def known_entries() -> list[FormatEntry]:
    """The entries that come with eyas, by name."""
    return [load_entry(path) for path in sorted(FOLDER.glob("*.yaml"))]


def chosen_entry(choice: str) -> FormatEntry:
    """The entry that `target.think_format` names: a family, or the path of a YAML file.

    Raises:
        ConfigError: neither exists, or the file is wrong.
    """
    if choice.endswith((".yaml", ".yml")):
        return load_entry(Path(choice))
    path = FOLDER / f"{choice}.yaml"
    if Path(choice).name != choice or not path.exists():
        raise ConfigError(
            f"`target.think_format`: {choice!r} is no family", where="params.yaml", hint=_known()
        )
    return load_entry(path)


def _known() -> str:
    names = ", ".join(sorted(path.stem for path in FOLDER.glob("*.yaml")))
    return f"null finds the format; families: {names}; or the path of a .yaml file, or none"
