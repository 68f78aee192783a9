"""Judging a file of responses in one pass, batch by batch, so that it may be larger than memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import polars as pl

from eyas.schema import Quarantined, Validated, check, columns_of
from eyas.tables import write_batches
from eyas.target.spec import TargetProfile
from eyas.validate.judgement import LEDGER_SCHEMA, Judged, judge
from eyas.validate.responses import Block, block_of, read_blocks, responses_of
from eyas.validate.rule import Rule
from eyas.validate.turns import KEY

Item = TypeVar("Item")
Result = TypeVar("Result")

WORKERS = 2
"""Batches that are judged at the same time: decoding JSON keeps one core busy, and each costs some 300 MB."""
LINES = 1024
"""Lines that are read by their places at a time."""


@dataclass
class Passage:
    """One pass over the responses of a dataset."""

    responses: Path
    asked: pl.DataFrame
    """As turns.asked_of makes it."""
    rules: Sequence[Rule]
    profile: TargetProfile
    sample_rows: int
    """Rows to compare with their texts."""
    _ledgers: list[pl.DataFrame] = field(default_factory=list)
    _sample: pl.DataFrame | None = None

    def write_validated(self, path: Path, notes: Mapping[str, str]) -> None:
        """Judge all responses and write the valid ones, schema Validated, sorted by sample_id and turn.

        Not atomic: `path` is a temporary file.

        Raises:
            ArtifactError: the responses are no table of responses.
        """
        write_batches(path, Validated, self._validated(), notes)
        keys = self.ledger.select(KEY)
        if (
            not keys.equals(keys.sort(KEY)) and not keys.is_duplicated().any()
        ):  # the set rule stops repeated ones
            write_batches(path, Validated, self._validated_in_order(), notes)

    def write_quarantined(self, path: Path) -> None:
        """Write the other rows, schema Quarantined, sorted likewise."""
        write_batches(path, Quarantined, self._quarantined())

    @property
    def ledger(self) -> pl.DataFrame:
        """judgement.LEDGER_SCHEMA of all rows judged so far, in the order of the file."""
        return pl.concat([pl.DataFrame(schema=LEDGER_SCHEMA), *self._ledgers])

    @property
    def sample(self) -> pl.DataFrame | None:
        """Rows to compare; None if there is none."""
        return self._sample

    def _validated(self) -> Iterator[pl.DataFrame]:
        for judged in in_order(self._judge, read_blocks(self.responses), WORKERS):
            self._keep(judged)
            yield judged.validated

    def _validated_in_order(self) -> Iterator[pl.DataFrame]:
        """The valid rows again, read line by line in their order: generate writes them so, another program may not."""
        valid = self.ledger.filter(pl.col("rule").is_null()).sort(KEY)
        blocks = (block_of(self.responses, part) for part in valid.iter_slices(LINES))
        return (judged.validated for judged in in_order(self._judge, blocks, WORKERS))

    def _judge(self, block: Block) -> Judged:
        responses = responses_of(block)
        judged = judge(responses, self.asked, self.rules, self.profile, sample=self.sample_rows)
        check(Validated, judged.validated, "validated rows")
        return judged

    def _keep(self, judged: Judged) -> None:
        self._ledgers.append(judged.ledger)
        parts = [judged.sample] if self._sample is None else [self._sample, judged.sample]
        self._sample = pl.concat(parts).sort("prompt_hash", *KEY).head(self.sample_rows)

    def _quarantined(self) -> Iterator[pl.DataFrame]:
        broken = self.ledger.drop_nulls("rule").sort(KEY)
        for part in broken.iter_slices(LINES):
            row = block_of(self.responses, part).rows()
            table = part.with_columns(row).select(columns_of(Quarantined).names())
            check(Quarantined, table, "quarantined rows")
            yield table


def in_order(work: Callable[[Item], Result], items: Iterable[Item], workers: int) -> Iterator[Result]:
    """Results in the order of the items, while a few items ahead are worked on in threads."""
    with ThreadPoolExecutor(workers) as pool:
        waiting: deque[Future[Result]] = deque()
        for item in items:
            waiting.append(pool.submit(work, item))
            if len(waiting) > workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
