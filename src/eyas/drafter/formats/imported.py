"""A drafter read from a checkpoint of any known format."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from eyas.drafter.config import DrafterConfig
from eyas.drafter.vocab import VocabMap


@dataclass(frozen=True)
class ImportedDrafter:
    """Everything that is needed to train, run or export it."""

    config: DrafterConfig
    state: dict[str, Tensor]
    """Weights under the names of `Drafter`'s parameters, in the precision of the file."""
    vocab: VocabMap
    format: str
    """eyas | vllm | sglang | speculators."""
    assumptions: list[str]
    """What the files do not say and was taken for granted, one sentence each."""

    @property
    def dtypes(self) -> list[str]:
        """Precisions of the weights, such as [bfloat16]."""
        return sorted({str(tensor.dtype).removeprefix("torch.") for tensor in self.state.values()})
