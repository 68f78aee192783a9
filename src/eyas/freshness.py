"""Whether a prompt table was made from the params of now."""

from __future__ import annotations

from pathlib import Path

from eyas import paths
from eyas.config import read_section
from eyas.hashing import digest
from eyas.tables import INPUTS, read_note


def inputs_digest(params: Path = paths.PARAMS) -> str:
    """SHA-256 (hex) of the `datasets` and `prompts` sections: what decides every prompt table.

    Raises:
        ConfigError: a section is missing or params.yaml can't be read.
    """
    return digest({name: read_section(name, params) for name in ("datasets", "prompts")})


def read_inputs_digest(table: Path) -> str | None:
    """The digest that a prompt table was written with; None if there is no such file or it carries none.

    Raises:
        ArtifactError: the file is not a readable Parquet file.
    """
    return read_note(table, INPUTS) if table.exists() else None
