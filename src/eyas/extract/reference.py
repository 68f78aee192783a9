"""The model's own hidden states, which captured ones are compared with."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil
import torch
from torch import Tensor

from eyas.errors import EyasError
from eyas.extract.backend import Backend, TransformersBackend
from eyas.target.model import load_target, tensor_files
from eyas.target.spec import TargetProfile

logger = logging.getLogger("eyas.extract")

MEMORY_SHARE = 0.7
"""Share of the free memory that a model loaded for the comparison may take."""

HiddenStates = Callable[[Sequence[int]], list[Tensor]]
"""Token ids of a sequence -> N + 1 times [T, H], the `hidden_states` of transformers."""


@dataclass(frozen=True)
class Reference:
    """Where the model's own states come from, or why there are none."""

    hidden_states: HiddenStates | None
    missing: str | None
    """Why there is nothing to compare with."""
    foreign: bool = False
    """Whether other kernels compute the states than the backend's: those that serve may quantise."""

    @classmethod
    def of(cls, backend: Backend, directory: Path, profile: TargetProfile) -> Reference:
        """The backend's own model, or else the target loaded with transformers into main memory, if it fits."""
        if isinstance(backend, TransformersBackend):
            return cls(backend.reference, None)
        free = psutil.virtual_memory().available
        needed = sum((directory / name).stat().st_size for name in set(tensor_files(directory).values()))
        if needed > MEMORY_SHARE * free:
            return cls._none(
                f"the target takes {needed / 1e9:.1f} GB of memory, {free / 1e9:.1f} GB are free"
            )
        try:
            model = load_target(directory, profile.dtype, trust_remote_code=profile.trust_remote_code)
        except EyasError as error:
            return cls._none(f"transformers can't load the target: {error.what}")
        own = TransformersBackend(model, profile.aux_layer_ids, torch.device("cpu"))
        return cls(own.reference, None, foreign=True)

    @classmethod
    def _none(cls, why: str) -> Reference:
        logger.warning("states are not compared with the model's own hidden_states: %s", why)
        return cls(None, why)
