"""Which backend gives the states: the choice that `extract.backend` makes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from eyas.compute import ComputeParams
from eyas.extract.backend import Backend, TransformersBackend
from eyas.extract.memory import told_when_too_large
from eyas.extract.params import ExtractParams
from eyas.extract.vllm import VllmBackend
from eyas.serving.params import ServerParams
from eyas.target.model import load_target
from eyas.target.spec import TargetProfile


@dataclass(frozen=True)
class ServerSetting:
    """What a backend needs that runs the target in a server of its own."""

    params: ServerParams
    folder: Path
    """Private to this run, for the files that the server hands over."""
    longest: int
    """Tokens of the longest sequence of all splits."""
    name_of: Callable[[Sequence[int]], str]
    """The id of the sequence with these tokens, for messages."""


def load_backend(
    directory: Path,
    profile: TargetProfile,
    params: ExtractParams,
    compute: ComputeParams,
    device: torch.device,
    server: ServerSetting | None = None,
) -> Backend:
    """Load or prepare what runs the target.

    Args:
        directory: the target's files.
        profile: of the target.
        params: section `extract`.
        compute: section `compute`.
        device: where this process computes, unless compute.device_map spreads the target.
        server: only for backends that start one.

    Raises:
        InputError: the target can't be loaded, or the backend can't run it.
    """
    if params.backend == VllmBackend.name:
        if server is None:
            raise ValueError("extract.backend: vllm needs the section `server`")
        return VllmBackend(
            directory,
            profile,
            server.params,
            longest=server.longest,
            folder=server.folder,
            name_of=server.name_of,
        )
    model = load_target(
        directory,
        profile.dtype,
        trust_remote_code=profile.trust_remote_code,
        device_map=compute.device_map,
    )
    if compute.device_map is None:
        with told_when_too_large(str(device)):
            model = model.to(device)
    return TransformersBackend(model, profile.aux_layer_ids)
