"""The draft vocabulary: which target tokens the drafter can propose.

d2t holds offsets: target id = draft id + d2t[draft id], as vLLM and SGLang read it. t2d marks the kept ids.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from eyas.errors import ArtifactError


@dataclass(frozen=True)
class VocabMap:
    """A bijection between draft ids and the kept target ids, both ascending."""

    d2t: Tensor
    """int64 [Vd], offsets."""
    t2d: Tensor
    """bool [V]."""

    @classmethod
    def of_ids(cls, draft_ids: Tensor, vocab_size: int) -> VocabMap:
        """The map that keeps these target ids (int64 [Vd], ascending)."""
        t2d = torch.zeros(vocab_size, dtype=torch.bool)
        t2d[draft_ids] = True
        return cls(d2t=draft_ids - torch.arange(len(draft_ids)), t2d=t2d)

    @classmethod
    def read(cls, directory: Path) -> VocabMap:
        """Read vocab.safetensors of the vocab stage, checked.

        Raises:
            ArtifactError: missing, damaged or inconsistent.
        """
        path = directory / "vocab.safetensors"
        try:
            tensors = load_file(path)
        except (FileNotFoundError, SafetensorError) as error:
            raise ArtifactError(
                f"can't read the draft vocabulary: {error}", where=str(path), hint="dvc repro vocab"
            ) from error
        vocab = cls(d2t=tensors["d2t"], t2d=tensors["t2d"])
        vocab.check(str(path))
        return vocab

    def check(self, where: str) -> None:
        """Refuse a map that is no ascending bijection, such as absolute ids in place of offsets.

        Raises:
            ArtifactError: naming the broken rule.
        """
        problems = {
            f"d2t must be int64 [Vd], is {self.d2t.dtype} {list(self.d2t.shape)}": (
                self.d2t.dtype != torch.int64 or self.d2t.dim() != 1
            ),
            f"t2d must be bool [V], is {self.t2d.dtype} {list(self.t2d.shape)}": (
                self.t2d.dtype != torch.bool or self.t2d.dim() != 1
            ),
        }
        for problem, broken in problems.items():
            if broken:
                raise ArtifactError(problem, where=where, hint="rebuild it with `dvc repro vocab`")
        if not torch.equal(self.draft_ids, torch.nonzero(self.t2d).flatten()):
            raise ArtifactError(
                "d2t and t2d disagree: draft id + d2t[draft id] is not the sorted list of ids that t2d keeps",
                where=where,
                hint="d2t must hold offsets, not target ids; rebuild it with `dvc repro vocab`",
            )

    @property
    def size(self) -> int:
        return len(self.d2t)

    @property
    def draft_ids(self) -> Tensor:
        """Target id of each draft id, int64 [Vd]."""
        return self.d2t + torch.arange(len(self.d2t), device=self.d2t.device)

    def to(self, device: torch.device) -> VocabMap:
        return VocabMap(d2t=self.d2t.to(device), t2d=self.t2d.to(device))

    def to_target(self, draft_ids: Tensor) -> Tensor:
        """Target ids of draft ids, any shape."""
        return draft_ids + self.d2t[draft_ids]

    def to_draft(self, target_ids: Tensor) -> Tensor:
        """Draft ids of target ids, any shape; -1 where the token is not in the draft vocabulary."""
        ranks = torch.cumsum(self.t2d.long(), dim=0) - 1  # [V]
        ids = target_ids.long()
        return torch.where(self.t2d[ids], ranks[ids], -1)
