"""Writing the folder of one format, and checking it as it lies on disk."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path

import torch

from eyas.drafter.config import DrafterConfig
from eyas.drafter.formats.reading import read_drafter
from eyas.drafter.formats.serving import Serving
from eyas.drafter.formats.sglang import unservable
from eyas.drafter.formats.writing import file_tensors, write_drafter
from eyas.drafter.model import Drafter
from eyas.drafter.vocab import VocabMap
from eyas.errors import ConfigError
from eyas.export.check import Checkpoint, find_problems, refuse


@dataclass(frozen=True)
class Trained:
    """What a folder must hold."""

    drafter: Drafter
    vocab: VocabMap
    imported: bool
    """Training began with a drafter from elsewhere, whose rope and vocabulary are kept even where they are not the target's."""

    @property
    def config(self) -> DrafterConfig:
        return self.drafter.config


def export_drafter(directory: Path, name: str, trained: Trained, serving: Serving) -> None:
    """Write format `name` into an existing directory, read it back and compare.

    Raises:
        ConfigError: the engine of this format would compute something else than was trained.
        ArtifactError: what lies on disk is not what was trained, or not whole.
    """
    check_servable(name, trained.config, serving)
    write_drafter(directory, name, trained.config, trained.drafter.state_dict(), trained.vocab, serving)
    check_drafter(directory, name, trained, serving)


def check_drafter(directory: Path, name: str, trained: Trained, serving: Serving) -> None:
    """Check a folder of format `name` against itself, its target, and what was trained.

    Raises:
        ArtifactError: naming every problem found.
    """
    checkpoint = Checkpoint.read(directory)
    imported = trained.config if trained.imported else None
    refuse(find_problems(checkpoint, name, serving.profile, imported), directory)
    refuse(_differences(directory, name, checkpoint, trained, serving), directory)


def check_servable(name: str, config: DrafterConfig, serving: Serving) -> None:
    """Refuse a format whose engine lacks something that this drafter needs.

    Raises:
        ConfigError: says what, and what to change.
    """
    problems = unservable(config, serving.profile) if name == "sglang" else []
    if problems:
        raise ConfigError(
            f"`export.formats`: {name} can't serve this drafter: {'; '.join(problems)}",
            where="params.yaml",
            hint=f"remove {name} from export.formats, or train with flags and layers that it supports (docs/export.md)",
        )


def _differences(
    directory: Path, name: str, checkpoint: Checkpoint, trained: Trained, serving: Serving
) -> list[str]:
    """Whether the folder says everything, and says what was trained."""
    read = read_drafter(directory, serving.profile)
    problems = [f"the folder does not say everything: {sentence}" for sentence in read.assumptions]
    for field in fields(DrafterConfig):
        found, wanted = getattr(read.config, field.name), getattr(trained.config, field.name)
        if found != wanted:
            problems.append(f"`{field.name}` reads back as {found!r}, trained was {wanted!r}")
    written = file_tensors(name, trained.drafter.state_dict(), trained.vocab, serving.dtype)
    problems += [
        f"tensor `{key}` reads back with other numbers"
        for key, tensor in checkpoint.tensors.items()
        if not torch.equal(tensor, written[key])
    ]
    return problems
