"""The journal of an extraction: a folder per fingerprint, outside DVC's outputs, which DVC deletes before each run.

The fingerprint is a digest of everything that decides the bytes of a shard or what is counted of it: target, sequences,
params, backend and versions, and the code that computes. Shards of another fingerprint are never used.

A folder outlives the run that published its shards: until DVC has taken the output into its cache, which takes hours for
terabytes, nothing else would hold them if that is interrupted. Published files are hard links, so it costs no space. The
next run removes it, or whoever reads the output first.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import socket
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from eyas import filelock, paths
from eyas.errors import JournalInUse
from eyas.extract.params import ExtractParams
from eyas.files import write_json
from eyas.hashing import digest, files_digest
from eyas.published import PUBLISHED, is_published
from eyas.sampling import Sampling
from eyas.serving.params import ServerParams
from eyas.shards import StoreMeta
from eyas.target.spec import TargetProfile

logger = logging.getLogger("eyas.extract")

PACKAGE = Path(__file__).parent.parent
VERSION = 1
STAGE = "extract"
FINGERPRINT = "fingerprint.json"
FIXTURE = "fixture.json"
LOCK = "lock"
OWNER = "owner.json"
"""Which machine extracts, or did last: locks of another one can't be seen."""
ELSEWHERE_S = 24 * 3600.0
"""Without a change for so long, a folder of another machine counts as left."""
DECIDING_PARAMS = ("backend", "dtype", "batch_tokens", "shard_bytes")
"""Keys of section `extract` that decide a shard; the others are thresholds of gates, which are checked anew."""
NEUTRAL = (
    "budget", "journal", "launch", "memory", "params", "parts", "progress", "publish", "ranks", "run", "table", "work",
)  # fmt: skip
"""Modules of this package that do not decide what is in a shard."""
DECIDING = (
    "fidelity.py",
    "gemm.py",
    "manifest.py",
    "nucleus.py",
    "shardfile.py",
    "states.py",
    "storage.py",
    "target/model.py",
    "target/layers.py",
)
"""Other modules that do."""
SERVED = ("serving",)
"""Packages that do if a server runs the target."""


def fingerprint(
    profile: TargetProfile,
    params: ExtractParams,
    sampling: Sampling,
    meta: StoreMeta,
    sources: Mapping[str, str],
    server: ServerParams | None = None,
) -> dict[str, Any]:
    """What shards belong to, in clear text.

    Args:
        profile: of the target.
        params: section `extract`.
        sampling: how the answers were sampled: the gate's counts depend on it.
        meta: of the stores.
        sources: digest of the sequences of each split.
        server: section `server`; its extra_args may decide kernels, if a server runs the target.
    """
    served = params.backend == "vllm"
    arguments = {"server": list(server.extra_args)} if served and server is not None else {}
    return arguments | {
        "version": VERSION,
        "target": {"name": profile.name, "digest": profile.digest, "dtype": profile.dtype},
        "params": {key: value for key, value in asdict(params).items() if key in DECIDING_PARAMS},
        "sampling": asdict(sampling),
        "store": asdict(meta),
        "sequences": dict(sources),
        "code": code_digest(served=served),
    }


def code_digest(*, served: bool) -> str:
    """Digest of the modules that decide what is in a shard."""
    files = [path for path in (PACKAGE / "extract").glob("*.py") if path.stem not in NEUTRAL]
    files += [PACKAGE / name for name in DECIDING]
    files += [path for name in SERVED if served for path in (PACKAGE / name).rglob("*.py")]
    return files_digest(files, PACKAGE)


@dataclass(frozen=True)
class ExtractJournal:
    """The folder of one fingerprint."""

    folder: Path

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Self:
        """The folder of a fingerprint, which may not exist yet."""
        return cls(paths.journal(STAGE) / digest(values)[:16])

    def open(self, values: Mapping[str, Any]) -> None:
        """Make it this process's own and say in it what it is of.

        Raises:
            JournalInUse: another extraction is writing it.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        try:
            filelock.take(self.folder / LOCK)
        except JournalInUse as error:
            raise JournalInUse(
                error.what,
                where=error.where,
                hint="wait for it, or stop it and run again; finished shards are kept",
            ) from error
        except OSError as error:  # a shared file system without locks
            logger.warning("%s can't be locked (%s): start no second extraction", self.folder, error)
        (self.folder / PUBLISHED).unlink(missing_ok=True)
        for torn in self.folder.glob("*/*.tmp"):  # what a killed run was writing
            torn.unlink()
        write_json(self.folder / OWNER, {"host": socket.gethostname(), "pid": os.getpid()})
        write_json(self.folder / FINGERPRINT, dict(values))

    def parts(self, split: str) -> Path:
        """Where the shards of a split are written."""
        return self.folder / split

    def keep_fixture(self, report: dict[str, Any]) -> None:
        """Remember what the comparison at the start has found, for a run that has nothing left to compute."""
        write_json(self.folder / FIXTURE, report)

    def kept_fixture(self) -> dict[str, Any] | None:
        """What the comparison of this run or an earlier one has found; None if there was none."""
        try:
            values: dict[str, Any] = json.loads((self.folder / FIXTURE).read_bytes())
        except (FileNotFoundError, ValueError):
            return None
        return values

    def finish(self, *, keep: bool) -> None:
        """The stores are published: mark the folder so, or remove it."""
        if keep:
            write_json(self.folder / PUBLISHED, {"pid": os.getpid()})
        else:
            shutil.rmtree(self.folder, ignore_errors=True)


@dataclass(frozen=True)
class Leftover:
    """The folder of another fingerprint, which nobody is writing."""

    folder: Path
    bytes: int
    """That its files hold alone; those that a store or DVC's cache shares with it are not counted."""
    changed: float
    """When, in Unix seconds."""

    def remove(self) -> None:
        """Remove it."""
        shutil.rmtree(self.folder, ignore_errors=True)


def leftovers(current: Path) -> list[Leftover]:
    """Folders of other fingerprints, the oldest first; published ones are removed on the way.

    What another machine may still be writing into a shared folder is none.
    """
    found = []
    for folder in sorted(current.parent.iterdir()):
        holder = filelock.holder(folder / LOCK)
        if folder == current or not (folder / FINGERPRINT).exists() or (holder is not None and holder.holds):
            continue
        if is_published(folder):
            shutil.rmtree(folder, ignore_errors=True)
            continue
        stats = [path.stat() for path in folder.rglob("*") if path.is_file()]
        size = sum(stat.st_size for stat in stats if stat.st_nlink == 1)
        changed = max(stat.st_mtime for stat in stats)
        if _host_of(folder) in (None, socket.gethostname()) or time.time() - changed > ELSEWHERE_S:
            found.append(Leftover(folder, size, changed))
    return sorted(found, key=lambda leftover: leftover.changed)


def _host_of(folder: Path) -> str | None:
    """The machine that opened a folder last; None if it does not say."""
    try:
        return str(json.loads((folder / OWNER).read_bytes())["host"])
    except (FileNotFoundError, KeyError, TypeError, ValueError):
        return None


def server_folder() -> Path:
    """Where a server of this process may put files; folders of processes of this machine that are gone are removed."""
    root = paths.journal(STAGE)
    prefix = f"server-{socket.gethostname()}-"
    for folder in root.glob(f"{prefix}*"):
        pid = folder.name.removeprefix(prefix)
        if pid.isdigit() and not Path("/proc", pid).exists():
            shutil.rmtree(folder, ignore_errors=True)
    return root / f"{prefix}{os.getpid()}"
