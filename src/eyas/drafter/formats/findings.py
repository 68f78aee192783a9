"""What reading a foreign checkpoint found: what had to be assumed, and what makes it unusable."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeGuard

from eyas.errors import InputError


@dataclass
class Findings:
    """Collected while a folder is read, so that its user sees all of it at once."""

    directory: Path
    assumptions: list[str] = field(default_factory=list)
    """What the files do not say and was taken for granted, one sentence each."""
    problems: list[str] = field(default_factory=list)
    """Why the drafter can't be used, one sentence each."""

    def assume(self, sentence: str) -> None:
        self.assumptions.append(sentence)

    def refuse(self, sentence: str) -> None:
        self.problems.append(sentence)

    def check(self, hint: str) -> None:
        """Go on only with what can be used.

        Raises:
            InputError: naming every problem found so far.
        """
        if self.problems:
            raise InputError(
                "this drafter can't be used:\n" + "\n".join(f"  - {each}" for each in self.problems),
                where=str(self.directory),
                hint=hint,
            )

    def size(self, values: Mapping[str, Any], key: str, default: int | None, why: str = "") -> int:
        """A positive whole number of the config, or its default, which is then an assumption; 0 after a problem."""
        value: Any = values.get(key)
        if value is None and default is not None:
            self.assume(f"`{key}` is {default}, {why}: the config does not say")
            return default
        if not is_size(value):
            self.refuse(f"config: `{key}` must be a positive whole number, is {value!r}")
            return 0
        return value

    def flag(self, values: Mapping[str, Any], key: str, default: bool) -> bool:
        """True or false, or the format's default; the default is an assumption."""
        value = values.get(key)
        if value is None:
            self.assume(
                f"`{key}` is {str(default).lower()}: the config does not say, and that is the format's default"
            )
            return default
        if not isinstance(value, bool):
            self.refuse(f"config: `{key}` must be true or false, is {value!r}")
            return default
        return value


def is_size(value: Any) -> TypeGuard[int]:
    """Whether a JSON value is a positive whole number."""
    return isinstance(value, int) and not isinstance(value, bool) and value > 0
