"""Bringing the target's files into models/target from a wheel's GGUF file, a folder or the model hub."""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from eyas.errors import InputError
from eyas.target.params import TargetParams

PATTERNS = (
    "*.json", "*.safetensors", "*.model", "*.jinja", "*.tiktoken", "merges.txt", "vocab.txt", "LICENSE*"
)  # fmt: skip
"""Files of a model folder that are used. Pickled weights are not: only safetensors are loaded."""


@dataclass(frozen=True)
class Origin:
    """Where a target came from, in words that are the same on every machine."""

    source: str
    revision: str | None
    served_name: str


def bring_target(params: TargetParams, directory: Path) -> Origin:
    """Fill an empty `directory` with the target's files.

    Raises:
        InputError: the package, file, folder or hub revision is not there or holds no usable model.
    """
    bring = {"gguf_wheel": _bring_gguf, "folder": _bring_folder, "hub": _bring_hub}[params.source]
    origin = bring(params, directory)
    for name in ("config.json", "*.safetensors"):
        if not any(directory.glob(name)):
            raise InputError(
                f"the target has no {name}",
                where=f"{params.source} {params.name}",
                hint="a Hugging Face model folder with safetensors weights is needed; pickled weights are not loaded",
            )
    return origin


def find_gguf(package: str, version: str | None, file: str) -> Path:
    """Path of a GGUF file inside an installed package.

    Raises:
        InputError: the package is not installed, has another version, or lacks the file.
    """
    install = f"pip install {package}=={version}"
    try:
        found = distribution(package)
    except PackageNotFoundError as error:
        raise InputError(
            f"the package {package} is not installed", where="target.name", hint=install
        ) from error
    if version is not None and found.version != version:
        raise InputError(
            f"{package} is installed as {found.version}, not {version}", where="target.revision", hint=install
        )
    for entry in found.files or []:
        if file in {entry.name, str(entry)} and Path(str(entry.locate())).exists():
            return Path(str(entry.locate()))
    raise InputError(
        f"{package} {found.version} has no file {file}", where="target.file", hint=f"pip show -f {package}"
    )


def _bring_gguf(params: TargetParams, directory: Path) -> Origin:
    from eyas.target.convert import convert_gguf

    assert params.file is not None
    path = find_gguf(params.name, params.revision, params.file)
    convert_gguf(path, directory, params.dtype)
    name = re.sub(r"[.-](I?Q\d\w*|B?F\d+)$", "", path.stem, flags=re.IGNORECASE)
    return Origin(f"gguf_wheel:{params.name}/{path.name}", params.revision, name)


def _bring_folder(params: TargetParams, directory: Path) -> Origin:
    folder = Path(params.name).expanduser()
    if not folder.is_dir():
        raise InputError("there is no such folder", where=f"target.name: {params.name}")
    name = folder.resolve().name
    for path in _wanted(folder, params):
        shutil.copyfile(path, directory / path.name)
    return Origin(f"folder:{name}", None, name)


def _bring_hub(params: TargetParams, directory: Path) -> Origin:
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        commit = HfApi().model_info(params.name, revision=params.revision).sha
        snapshot_download(
            params.name, revision=commit, local_dir=directory, allow_patterns=list(_patterns(params))
        )
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        raise InputError(
            f"the hub does not give {params.name} at {params.revision}: {error}",
            where="target.name, target.revision",
            hint="check the id and revision, HF_TOKEN for gated models, and the network; or use target.source: folder",
        ) from error
    shutil.rmtree(directory / ".cache", ignore_errors=True)  # download bookkeeping with times in it
    return Origin(f"hub:{params.name}", commit, params.name.rsplit("/", 1)[-1])


def _wanted(folder: Path, params: TargetParams) -> list[Path]:
    return sorted(
        path for path in folder.iterdir() if path.is_file() and any(path.match(p) for p in _patterns(params))
    )


def _patterns(params: TargetParams) -> tuple[str, ...]:
    return (*PATTERNS, "*.py") if params.trust_remote_code else PATTERNS
