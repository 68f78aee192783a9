"""Whether there is room for the hidden states, asked before any work: in the journal, the output and DVC's cache."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from eyas.errors import GateError

FREE_BYTES = 512 << 20
"""Disk that must stay free beside the store."""
DVC_DEFAULT_TYPES = ["reflink", "copy"]
_PROBE = ".eyas-link-probe"


@dataclass(frozen=True)
class Need:
    """Bytes that will be written to a file system."""

    what: str
    path: Path
    bytes: int


@dataclass(frozen=True)
class Cache:
    """DVC's cache, as it is configured."""

    path: Path
    types: list[str]
    """How a file in the tree and its copy in the cache may share their bytes, the wanted way first."""


@dataclass(frozen=True)
class Sizes:
    """Bytes of the stores of all splits."""

    all: int
    missing: int
    """Of the shards that are not finished."""


def needs(sizes: Sizes, journal: Path, output: Path, cache: Cache | None) -> list[Need]:
    """What the extraction writes, and what DVC writes when it takes the output into its cache.

    Args:
        sizes: of the stores.
        journal: where finished shards are kept until the stores are published.
        output: where the stores are published, by hard links if the file systems allow it.
        cache: DVC's cache; None if there is none.
    """
    found = [Need("shards in the journal", journal, sizes.missing)]
    if not can_link(journal, output):
        found.append(Need("the output, which can't share its bytes with the journal", output, sizes.all))
    if cache is not None and not shares_bytes(output, cache):
        why = f"cache.type is {','.join(cache.types)}"
        found.append(Need(f"DVC's cache, which will hold a copy ({why})", cache.path, sizes.all))
    return found


def check_disk(wanted: Sequence[Need]) -> None:
    """Refuse to start what can't be finished.

    Raises:
        GateError: says for each thing that is written how many bytes it needs, and how many are free.
    """
    for group in _by_file_system(wanted):
        needed, free = sum(need.bytes for need in group), free_bytes(group[0].path)
        if not needed or needed + FREE_BYTES <= free:
            continue
        parts = "; ".join(f"{_gigabytes(need.bytes)} for {need.what}" for need in group)
        raise GateError(
            f"the hidden states need {_gigabytes(needed)}, and {_gigabytes(free)} are free: {parts}",
            where=str(group[0].path.resolve()),
            hint="free disk space, use a smaller extract.dtype, or extract fewer or shorter sequences"
            + "".join({_cache_hint(need) for need in group}),
        )


def dvc_cache(root: Path) -> Cache | None:
    """The cache of the repository at `root`; None if it is not a DVC repository or DVC is not installed."""
    if not (root / ".dvc").is_dir():
        return None
    try:
        from dvc.config import Config
    except ImportError:
        return None
    values = Config(dvc_dir=str(root / ".dvc")).get("cache", {})
    types = values.get("type") or DVC_DEFAULT_TYPES
    return Cache(Path(values.get("dir") or root / ".dvc" / "cache"), [str(kind) for kind in types])


def shares_bytes(output: Path, cache: Cache) -> bool:
    """Whether DVC takes files into the cache without copying them: only the first way that is configured counts."""
    way = cache.types[0]
    return (way == "hardlink" and can_link(output, cache.path)) or (
        way in ("reflink", "copy") and can_reflink(output, cache.path)
    )


def can_link(source: Path, destination: Path) -> bool:
    """Whether a file of one folder can be hard-linked into another; folders that do not exist yet: their parents."""
    return _probe(source, destination, os.link)


def can_reflink(source: Path, destination: Path) -> bool:
    """Whether a file's blocks can be shared with a copy in another folder."""
    try:
        from dvc_objects.fs.system import reflink
    except ImportError:
        return False
    return _probe(source, destination, reflink)


def free_bytes(path: Path) -> int:
    """Free for this user on the file system of a path, which may not exist yet."""
    return shutil.disk_usage(existing(path)).free


def existing(path: Path) -> Path:
    """The path, or its nearest parent that exists."""
    path = path.resolve()
    while not path.exists():
        path = path.parent
    return path


def _probe(source: Path, destination: Path, way: Callable[[str, str], None]) -> bool:
    name = f"{_PROBE}.{os.getpid()}"
    ours, theirs = existing(source) / name, existing(destination) / f"{name}.linked"
    try:
        ours.write_bytes(b"probe")
        way(str(ours), str(theirs))
    except (OSError, NotImplementedError):
        return False
    finally:
        ours.unlink(missing_ok=True)
        theirs.unlink(missing_ok=True)
    return True


def _by_file_system(wanted: Iterable[Need]) -> list[list[Need]]:
    groups: dict[int, list[Need]] = {}
    for need in wanted:
        groups.setdefault(existing(need.path).stat().st_dev, []).append(need)
    return list(groups.values())


def _cache_hint(need: Need) -> str:
    if "cache.type" not in need.what:
        return ""
    return ". `dvc config --local cache.type hardlink,symlink,copy` lets cache and output share their bytes"


def _gigabytes(size: int) -> str:
    return f"{size / 1e9:.2f} GB"
