"""The weights that the engine serves: those of the export, rounded to its dtype."""

from __future__ import annotations

from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file

from eyas.drafter.model import Drafter
from eyas.errors import ArtifactError

MAPS = ("d2t", "t2d")


def load_exported_weights(drafter: Drafter, directory: Path) -> None:
    """Put the weights of an exported plain checkpoint into a drafter, computed with in the drafter's own dtype.

    The parameter names of a plain checkpoint are the drafter's.

    Raises:
        ArtifactError: the checkpoint is missing, damaged, or of another drafter.
    """
    path = directory / "model.safetensors"
    try:
        tensors = load_file(path)
        drafter.load_state_dict({name: tensor for name, tensor in tensors.items() if name not in MAPS})
    except (FileNotFoundError, SafetensorError, RuntimeError) as error:
        raise ArtifactError(
            f"the exported drafter can't be simulated: {error}", where=str(path), hint="dvc repro export"
        ) from error
