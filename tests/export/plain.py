"""A vLLM folder in one call, written and checked."""

from __future__ import annotations

from pathlib import Path

from eyas.drafter.formats.serving import Serving
from eyas.drafter.formats.writing import write_drafter
from eyas.drafter.model import Drafter
from eyas.drafter.vocab import VocabMap
from eyas.export.check import Checkpoint, find_problems, refuse
from eyas.target.spec import TargetProfile


def write_plain(
    directory: Path, drafter: Drafter, vocab: VocabMap, profile: TargetProfile, dtype: str
) -> None:
    """Write the checkpoint into an existing directory, unchecked."""
    serving = Serving(profile, dtype, draft_tokens=3)
    write_drafter(directory, "vllm", drafter.config, drafter.state_dict(), vocab, serving)


def check_plain(directory: Path, profile: TargetProfile) -> None:
    """Check it against itself and against its target.

    Raises:
        ArtifactError: naming every problem found.
    """
    refuse(find_problems(Checkpoint.read(directory), "vllm", profile), directory)
