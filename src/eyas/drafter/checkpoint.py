"""Saving and loading a drafter directory: config.json and drafter.safetensors (weights, d2t, t2d).

A drafter that was not trained from nothing has origin.json too: what it was before.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from eyas.drafter.config import DrafterConfig
from eyas.drafter.model import Drafter
from eyas.drafter.vocab import VocabMap
from eyas.errors import ArtifactError
from eyas.files import write_json

WEIGHTS = "drafter.safetensors"
CONFIG = "config.json"
ORIGIN = "origin.json"


def save_drafter(
    directory: Path, drafter: Drafter, vocab: VocabMap, origin: dict[str, Any] | None = None
) -> None:
    """Write the drafter with its draft vocabulary into an existing directory.

    `origin`: format, folder and assumptions of the drafter that training began with.
    """
    if origin is not None:
        write_json(directory / ORIGIN, origin)
    drafter.config.write(directory / CONFIG)
    tensors = {name: tensor.detach().contiguous() for name, tensor in drafter.state_dict().items()}
    save_file({**tensors, "d2t": vocab.d2t, "t2d": vocab.t2d}, directory / WEIGHTS, metadata={"format": "pt"})


def read_origin(directory: Path) -> dict[str, Any] | None:
    """What the drafter was before training; None if it was trained from nothing.

    Raises:
        ArtifactError: damaged.
    """
    path = directory / ORIGIN
    try:
        values: dict[str, Any] = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise ArtifactError(f"not JSON: {error}", where=str(path), hint="dvc repro train") from error
    return values


def load_drafter(directory: Path) -> tuple[Drafter, VocabMap]:
    """Read a drafter directory.

    Raises:
        ArtifactError: a file is missing or damaged, or tensors are missing, unknown or of another shape.
    """
    config = DrafterConfig.read(directory / CONFIG)
    path = directory / WEIGHTS
    try:
        tensors = load_file(path)
    except (FileNotFoundError, SafetensorError) as error:
        raise ArtifactError(
            f"can't read drafter weights: {error}", where=str(path), hint="dvc repro train"
        ) from error
    if missing := {"d2t", "t2d"} - set(tensors):
        raise ArtifactError(f"drafter without {sorted(missing)}", where=str(path), hint="dvc repro train")
    vocab = VocabMap(d2t=tensors.pop("d2t"), t2d=tensors.pop("t2d"))
    vocab.check(str(path))
    drafter = Drafter(config)
    try:
        drafter.load_state_dict(tensors, strict=True)
    except RuntimeError as error:
        raise ArtifactError(f"drafter weights do not fit its config: {error}", where=str(path)) from error
    return drafter.eval(), vocab
