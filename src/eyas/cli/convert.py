"""`eyas convert FOLDER NEW_FOLDER`: a drafter from one checkpoint format to another, without training."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from eyas import paths
from eyas.errors import ConfigError, InputError
from eyas.files import atomic_directory
from eyas.target.spec import TargetProfile

if TYPE_CHECKING:
    from eyas.drafter.formats.imported import ImportedDrafter

FORMATS = ("vllm", "sglang", "speculators")
DTYPES = ("float32", "bfloat16", "float16")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", type=Path, help="drafter to read, in any format of docs/export.md")
    parser.add_argument("new_folder", type=Path, help="where to write it; must not exist")
    parser.add_argument("--format", choices=FORMATS, default="vllm", help="what to write (vllm)")
    parser.add_argument("--dtype", choices=DTYPES, help="of the weights (as they are)")
    parser.add_argument(
        "--draft-tokens", type=int, default=3, metavar="K", help="written into a speculators config (3)"
    )


def run(arguments: argparse.Namespace) -> int:
    """Convert, and print what was assumed; returns the exit code.

    Raises:
        ConfigError: the engine of the new format can't serve this drafter, or `new_folder` exists.
        InputError: the drafter can't be read, or is of another target than models/profile.json.
    """
    from eyas.drafter.formats.reading import (
        read_drafter,
    )  # torch is loaded only here: other commands start at once
    from eyas.drafter.formats.serving import Serving
    from eyas.drafter.formats.sglang import unservable
    from eyas.drafter.formats.writing import write_drafter
    from eyas.target.model import TargetHead

    if arguments.new_folder.exists():
        raise ConfigError("it exists already", where=str(arguments.new_folder), hint="name a new folder")
    profile = TargetProfile.read(paths.TARGET_PROFILE)
    head = TargetHead.read(paths.TARGET, profile, "float32") if paths.TARGET.is_dir() else None
    read = read_drafter(arguments.folder, profile, head)
    problems = unservable(read.config, profile) if arguments.format == "sglang" else []
    if problems:
        raise ConfigError(f"{arguments.format} can't serve this drafter: {'; '.join(problems)}")
    serving = Serving(profile, arguments.dtype or _dtype(read, arguments.folder), arguments.draft_tokens)
    with atomic_directory(arguments.new_folder) as directory:
        write_drafter(directory, arguments.format, read.config, read.state, read.vocab, serving)
    for sentence in read.assumptions:
        print(f"assumed: {sentence}")
    print(
        f"{arguments.new_folder}: {arguments.format}, {serving.dtype}; {arguments.folder} was {read.format}"
    )
    return 0


def _dtype(read: ImportedDrafter, folder: Path) -> str:
    if len(read.dtypes) == 1:
        return read.dtypes[0]
    raise InputError(
        f"the weights have several precisions: {', '.join(read.dtypes)}",
        where=str(folder),
        hint="choose one with --dtype",
    )
