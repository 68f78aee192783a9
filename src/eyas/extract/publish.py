"""From finished shards to a store: hard links to the journal's files, and the manifest last."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eyas.errors import ArtifactError
from eyas.extract.agreement import Agreement
from eyas.extract.facts import Facts
from eyas.extract.parts import Part, Parts
from eyas.extract.table import Sequences
from eyas.fidelity import LAST, StorageError
from eyas.shards import finish_store


@dataclass(frozen=True)
class SplitResult:
    """What was written."""

    bytes: int
    datasets: dict[str, dict[str, Any]]
    """Per dataset: sequences, tokens, labels, generated tokens checked, and how they agree with the target."""
    largest: dict[str, float]
    """Largest absolute value per aux layer and of the last state."""
    storage_errors: dict[str, StorageError]
    """Per aux layer and of the last state: what the storage type changes."""

    def report(self) -> dict[str, Any]:
        """For reports/extraction.json. Three digits of what is measured: kernels differ in the last ones."""
        return {
            "bytes": self.bytes,
            "largest_value": {name: _short(value) for name, value in self.largest.items()},
            "storage_error": {
                name: {"mean": _short(error.mean), "worst": _short(error.worst)}
                for name, error in self.storage_errors.items()
            },
            "datasets": self.datasets,
        }


def publish(
    sequences: Sequences, shards: int, parts: Parts, agreement: Agreement, directory: Path
) -> SplitResult:
    """Make the store of finished shards in an existing, empty directory.

    Args:
        sequences: of the split.
        shards: how many it has.
        parts: where they are.
        agreement: an empty one.
        directory: where the store is made.

    Raises:
        ArtifactError: a shard is missing.
        GateError: all shards together do not predict the generated tokens.
    """
    finished = [_finished(parts, number) for number in range(shards)]
    facts = Facts.none(agreement, len(parts.meta.aux_layer_ids))
    for part in finished:
        facts.merge(Facts.from_json(part.facts, agreement.fresh()))
    facts.agreement.check()
    for number in range(shards):
        link_or_copy(parts.path(number), directory / parts.path(number).name)
    names = [*map(str, parts.meta.aux_layer_ids), LAST]
    return SplitResult(
        bytes=finish_store(directory, parts.meta, [part.shard for part in finished]),
        datasets=_datasets(sequences, facts.agreement),
        largest=dict(zip(names, facts.largest, strict=True)),
        storage_errors=dict(zip(names, facts.storage_errors, strict=True)),
    )


def link_or_copy(source: Path, destination: Path) -> None:
    """Let two names share a file; where the file system can't, copy it. The source stays."""
    try:
        os.link(source, destination)
    except OSError:
        shutil.copyfile(source, destination)


def _finished(parts: Parts, number: int) -> Part:
    part = parts.read(number)
    if part is None:
        raise ArtifactError(
            "a shard that was finished is missing or has another size",
            where=str(parts.path(number)),
            hint="did anything remove files of the journal? Run again: it is computed anew",
        )
    return part


def _datasets(sequences: Sequences, agreement: Agreement) -> dict[str, dict[str, Any]]:
    rows = sequences.per_dataset()
    tokens = sequences.per_dataset(sequences.lengths)
    labels = sequences.per_dataset(sequences.label_counts)
    return {
        dataset: {
            "sequences": rows[dataset],
            "tokens": tokens[dataset],
            "labels": labels[dataset],
            **agreement.report(dataset),
        }
        for dataset in sorted(rows)
    }


def _short(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.3g}")
