"""The `vocab` section of params.yaml."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class VocabParams:
    """The draft vocabulary."""

    draft_vocab_size: int
    """Target tokens that the drafter can propose; at least 1, at most the target's vocabulary."""
    map_from: str | None = None
    """Folder of a drafter that is to be trained on, whose draft vocabulary is kept; null: the most frequent supervised
    tokens. DVC does not watch the folder: after changing it run `dvc repro -f vocab train`."""

    def __post_init__(self) -> None:
        if self.draft_vocab_size < 1:
            raise ValueError(f"draft_vocab_size: {self.draft_vocab_size} is below 1")
        if self.map_from == "":
            raise ValueError("map_from: '' is no folder; null takes none")
