"""The work of an extraction: which sequences become which shard.

A window of neighbouring sequences becomes a shard, whatever computes it and when: its batches are planned within it. So
the store does not depend on interruptions, on the number of processes, or on who computed which shard.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from eyas.extract.agreement import Agreement
from eyas.extract.parts import Parts
from eyas.extract.progress import Total
from eyas.extract.publish import SplitResult, publish
from eyas.extract.table import Sequences

MANY_MORE = 1.1
HEADER_BYTES = 4096
HEADER_BYTES_PER_SEQUENCE = 100
"""About what a shard takes beside its tensors: its header and the record beside it."""


@dataclass(frozen=True)
class Work:
    """A split and the shards that it becomes."""

    split: str
    sequences: Sequences
    windows: list[range]
    """Sequences of each shard."""
    sizes: list[int]
    """Bytes of each shard, without its header."""
    parts: Parts
    agreement: Agreement
    """An empty one."""

    def ids(self, number: int) -> list[str]:
        """The sequences of a shard."""
        return [self.sequences.sequence_ids[index] for index in self.windows[number]]

    def tokens(self, number: int) -> int:
        """Tokens of a shard."""
        window = self.windows[number]
        offsets = self.sequences.tokens.offsets
        return int(offsets[window.stop] - offsets[window.start])

    @property
    def layers(self) -> int:
        """Aux layers."""
        return len(self.parts.meta.aux_layer_ids)

    @property
    def longest_of_windows(self) -> list[int]:
        """Tokens of the longest sequence of each shard."""
        lengths = self.sequences.lengths
        return [int(lengths[window.start : window.stop].max()) for window in self.windows]

    def heaviest(self, batches: Sequence[Sequence[int]]) -> list[Sequence[int]]:
        """The batch with the longest sequence, and that with the most tokens if these are many more."""
        lengths = self.sequences.lengths

        def tokens(batch: Sequence[int]) -> int:
            return int(lengths[list(batch)].sum())

        longest = max(batches, key=lambda batch: int(lengths[list(batch)].max()))
        most = max(batches, key=tokens)
        return [longest] if tokens(most) <= MANY_MORE * tokens(longest) else [longest, most]

    def missing(self) -> list[int]:
        """Shards that are not finished, at a glance: nothing is read of those that are."""
        return [number for number in range(len(self.windows)) if self.parts.read(number) is None]

    def publish(self, directory: Path) -> SplitResult:
        """Make the store of the finished shards in an empty directory.

        Raises:
            ArtifactError: a shard is missing.
            GateError: all shards together do not predict the generated tokens.
        """
        return publish(self.sequences, len(self.windows), self.parts, self.agreement.fresh(), directory)

    @property
    def file_bytes(self) -> list[int]:
        """About the size of each shard's files."""
        return [
            size + HEADER_BYTES + HEADER_BYTES_PER_SEQUENCE * len(window)
            for size, window in zip(self.sizes, self.windows, strict=True)
        ]


def total_of(works: Sequence[Work]) -> Total:
    """What all splits together are."""
    return Total(
        tokens=sum(len(work.sequences.tokens.values) for work in works),
        bytes=sum(sum(work.sizes) for work in works),
        sequences=sum(len(work.sequences) for work in works),
    )
