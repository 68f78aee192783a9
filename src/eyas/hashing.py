"""Canonical JSON, digests, and the guard that a stage's params and code stayed what it started from."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eyas import paths
from eyas.config import read_value
from eyas.errors import ChangedWhileRunning

_CANONICAL = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def canonical_json(value: Any) -> bytes:
    """The one spelling of a JSON value: sorted keys, no spaces, UTF-8, NaN refused.

    Raises:
        ValueError: the value holds NaN or infinity.
    """
    return _CANONICAL.encode(value).encode()


def digest(value: Any) -> str:
    """SHA-256 (hex) of a JSON value's canonical form."""
    return hashlib.sha256(canonical_json(value)).hexdigest()


def file_digest(path: Path) -> str:
    """SHA-256 (hex) of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def files_digest(files: Iterable[Path], root: Path) -> str:
    """SHA-256 (hex) over relative names and contents of files, in name order."""
    return digest({path.relative_to(root).as_posix(): file_digest(path) for path in sorted(files)})


@dataclass(frozen=True)
class Guard:
    """What a stage started from. DVC hashes params and code after the command, so a stage checks itself.

    Without it, an edit during an hours-long stage would be recorded in dvc.lock as what made the old output
    (treeverse/dvc#11058).
    """

    sections: dict[str, str]
    code: dict[Path, str]

    @classmethod
    def start(cls, *sections: str) -> Guard:
        """Take the digests of these params (sections, or `section.key`) and of all eyas code and the running script."""
        package = Path(__file__).parent
        script = Path(sys.argv[0]).resolve()
        files = [*package.rglob("*.py"), *([script] if script.suffix == ".py" else [])]
        return cls(
            sections={name: digest(read_value(name)) for name in sections},
            code={path: file_digest(path) for path in files},
        )

    def check(self) -> None:
        """Compare with now; of the code, only modules that this process has imported count.

        Raises:
            ChangedWhileRunning: a section or a module differs.
        """
        for name, before in self.sections.items():
            if digest(read_value(name)) != before:
                raise ChangedWhileRunning(
                    f"`{name}` changed while the stage ran; its output would be recorded under the new values",
                    where=str(paths.PARAMS),
                    hint="run `dvc repro` again; for edits during long stages use `dvc exp run --temp`",
                )
        imported = {
            Path(file) for module in list(sys.modules.values()) if (file := getattr(module, "__file__", None))
        }
        imported.add(Path(sys.argv[0]).resolve())
        for path, before in self.code.items():
            if path in imported and (not path.exists() or file_digest(path) != before):
                raise ChangedWhileRunning(
                    "code changed while the stage ran; its output would be recorded under the new code",
                    where=str(path),
                    hint="run `dvc repro` again; for edits during long stages use `dvc exp run --temp`",
                )
