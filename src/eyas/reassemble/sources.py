"""What the sequences are made of: the answers of all datasets, their prompts proven, their ids completed from text."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from itertools import takewhile
from pathlib import Path
from threading import Event

import polars as pl

from eyas.reassemble.completion import complete
from eyas.reassemble.drift import SCHEMA, measure, sample
from eyas.reassemble.inputs import ValidatedTable, pieces
from eyas.reassemble.rendering import COLUMNS, Mismatch, Renderer, mismatches, refuse_mismatches
from eyas.reassemble.text import TextRebuilder
from eyas.target.spec import TargetProfile
from eyas.target.template import load_tokenizer


@dataclass(frozen=True)
class Proof:
    """What rendering and tokenising here says of the answers."""

    prompts: int
    """Prompts that were rendered here, all equal to the server's."""
    drift: pl.DataFrame
    """Answers tokenised from their text (drift.SCHEMA)."""


@dataclass
class Sources:
    """The validated tables of all datasets, in the order in which their sequences are written."""

    tables: list[ValidatedTable]
    target: Path
    profile: TargetProfile = field(repr=False)
    _left: Event = field(default_factory=Event, repr=False)

    @contextmanager
    def proving(self, drift_rows: int) -> Iterator[Future[Proof]]:
        """Both proofs, made in a thread meanwhile; whoever leaves before they are done does not wait for the rest."""
        with ThreadPoolExecutor(1) as pool:
            try:
                yield pool.submit(self.prove, drift_rows)
            finally:
                self._left.set()

    def prove(self, drift_rows: int) -> Proof:
        """Both proofs.

        Raises:
            GateError: a prompt differs.
            InputError: the template refuses the messages of a row.
        """
        return Proof(self.prove_prompts(), self.measure_drift(drift_rows))

    def prove_prompts(self) -> int:
        """Render every prompt here and compare it with the server's; returns how many were compared, all equal.

        Raises:
            GateError: a prompt differs; names the first differing token on both sides.
            InputError: the template refuses the messages of a row.
        """
        found: list[Mismatch] = []
        checked = 0
        load_tokenizer(self.target, trust_remote_code=self._trust)
        gc.freeze()  # what is loaded stays: the collector would look at it again and again
        for table in self.tables:
            given = table.rows().filter(pl.col("prompt_token_ids").is_not_null()).select(COLUMNS)
            checked += given.select(pl.len()).collect().item()
            found += mismatches(self._pieces(given), self._renderer(table))
        refuse_mismatches(found, checked, load_tokenizer(self.target, trust_remote_code=self._trust))
        return checked

    def measure_drift(self, rows: int) -> pl.DataFrame:
        """Compare at most so many answers that have ids with what their texts give (drift.SCHEMA)."""
        found = [pl.DataFrame(schema=SCHEMA)]
        if rows:
            chosen = sample(self.tables, rows)
            found += [measure(table, chosen, self._rebuilder) for table in self.tables]
        return pl.concat(found)

    def completed(self, directory: Path) -> list[ValidatedTable]:
        """The tables with ids in rows that lack them, made of their text: copies in a directory."""
        return [
            complete(table, directory / table.dataset, self._renderer(table), self._rebuilder)
            for table in self.tables
        ]

    def _pieces(self, rows: pl.LazyFrame) -> Iterator[pl.DataFrame]:
        return takewhile(lambda _: not self._left.is_set(), pieces(rows))

    @cached_property
    def _rebuilder(self) -> TextRebuilder:
        return TextRebuilder(load_tokenizer(self.target, trust_remote_code=self._trust), self.profile)

    @property
    def _trust(self) -> bool:
        return self.profile.trust_remote_code

    def _renderer(self, table: ValidatedTable) -> Renderer:
        return Renderer(self.target, table.template_kwargs, trust_remote_code=self._trust)
