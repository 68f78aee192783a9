"""A checkpoint folder as it lies on disk: config.json, and all tensors of its weight files.

Weights are read from safetensors, one file or several with an index, else from PyTorch's .bin files. Of those only
tensors are loaded (`weights_only`): nothing in them is run.
"""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from eyas.drafter.formats.weightfiles import check_folder, check_index, read_json, weight_files
from eyas.errors import InputError

CONFIG = "config.json"


@dataclass(frozen=True)
class Folder:
    """What the files hold, unchecked."""

    directory: Path
    config: dict[str, Any]
    tensors: dict[str, Tensor]
    """By the names in the files, in CPU memory."""


def read_folder(directory: Path) -> Folder:
    """Read config and weights.

    Raises:
        InputError: no such folder; a file is missing, damaged or ambiguous.
    """
    check_folder(directory)
    config = read_json(directory / CONFIG)
    tensors: dict[str, Tensor] = {}
    for path in weight_files(directory):
        part = _load(path)
        if twice := sorted(part.keys() & tensors.keys()):
            raise InputError(f"tensor `{twice[0]}` stands in two files", where=str(path))
        tensors |= part
    check_index(directory, set(tensors))
    return Folder(directory, config, tensors)


def _load(path: Path) -> dict[str, Tensor]:
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        loaded = torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, ValueError, EOFError, SafetensorError, pickle.UnpicklingError) as error:
        raise InputError(
            f"can't read these weights: {error}",
            where=str(path),
            hint="download the file again; a .bin file that holds more than tensors is refused, convert it to safetensors",
        ) from error
    tensors = loaded.get("state_dict", loaded) if isinstance(loaded, dict) else None
    if not isinstance(tensors, dict) or not all(isinstance(value, Tensor) for value in tensors.values()):
        raise InputError("this file holds no tensors by name", where=str(path))
    return {str(name): tensor.detach().contiguous() for name, tensor in tensors.items()}
