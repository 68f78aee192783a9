"""The extraction of all splits: check that it can end well, compute what is missing, publish the whole."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any, Self

from eyas import paths
from eyas.compute import ComputeParams
from eyas.errors import GateError
from eyas.extract.backends import ServerSetting
from eyas.extract.budget import Sizes, can_link, check_disk, dvc_cache, existing, needs
from eyas.extract.extractor import Extractor, extract_shards
from eyas.extract.facts import Facts
from eyas.extract.fixture import check_fixture, fixture_sequences
from eyas.extract.journal import ExtractJournal, fingerprint, leftovers, server_folder
from eyas.extract.params import ExtractParams
from eyas.extract.progress import Progress
from eyas.extract.ranks import Ranks
from eyas.extract.reference import Reference
from eyas.extract.table import Sequences
from eyas.extract.work import Work, total_of
from eyas.files import atomic_directory
from eyas.hashing import Guard
from eyas.metrics import write_report
from eyas.sampling import Sampling
from eyas.serving.params import ServerParams
from eyas.target.spec import TargetProfile

__all__ = ["Extraction", "Extractor"]

logger = logging.getLogger("eyas.extract")

CANDIDATES = 16
"""So many sequences of a split are looked at to choose the fixture from."""


@dataclass
class Extraction:
    """What one process knows of the extraction. Every rank goes through the same calls; only rank 0 publishes."""

    profile: TargetProfile
    extractor: Extractor
    journal: ExtractJournal
    works: list[Work]
    missing: list[list[int]]
    """Of each work, the shards that were not finished when this run began."""
    ranks: Ranks

    @classmethod
    @contextmanager
    def prepare(
        cls,
        params: ExtractParams,
        compute: ComputeParams,
        server: ServerParams,
        sampling: Sampling,
        ranks: Ranks,
    ) -> Iterator[Self]:
        """Read the sequences, load the target, plan the shards, and open the journal.

        Raises:
            ArtifactError, InputError: target or sequences are missing or do not fit each other.
            JournalInUse: another extraction of the same is running.
        """
        profile = TargetProfile.read(paths.TARGET_PROFILE)
        splits = {split: Sequences.read(paths.sequences(split), profile.vocab_size) for split in paths.SPLITS}
        extractor = Extractor.load(
            paths.TARGET, profile, params, compute,
            sampling=sampling, device=ranks.device, server=_server_setting(server, splits),
        )  # fmt: skip
        try:
            sources = {split: sequences.source_digest for split, sequences in splits.items()}
            values = fingerprint(profile, params, sampling, extractor.meta, sources, server)
            journal = ExtractJournal.of(values)
            ranks.first("journal", lambda: journal.open(values))
            works = [
                extractor.work(split, sequences, journal.parts(split)) for split, sequences in splits.items()
            ]
            missing = [work.missing() for work in works]
            yield cls(profile, extractor, journal, works, missing, ranks)
        finally:
            extractor.backend.close()

    @property
    def finished(self) -> bool:
        """Whether nothing was left to compute when this run began."""
        return not any(self.missing)

    def check_budget(self) -> None:
        """Stop before any work if there is not enough disk or memory for all of it.

        Raises:
            GateError: says what is needed, and what to lower.
        """
        self.ranks.first("disk", self._check_disk)
        served = self.extractor.backend.name == "vllm"  # a server claims its memory when it starts
        if served or self.finished:
            return
        longest = [work.longest_of_windows for work in self.works]
        _, place, number = max(
            (int(longest[place][number]), place, number)
            for place, numbers in enumerate(self.missing)
            for number in numbers
        )
        work = self.works[place]
        for batch in work.heaviest(self.extractor.batches(work, number)):
            self.extractor.compute_batch(work, batch, Facts.none(work.agreement.fresh(), work.layers))

    def check_states(self) -> None:
        """Compare a few captured states with the model's own before any work.

        Raises:
            GateError: a layer is another one, the final norm is missing or doubled, sequences are mixed up, ...
        """
        if not self.finished:
            self._checked()

    def _checked(self) -> Extractor:
        """The extractor, after the comparison: a run whose shards all seemed finished makes it when one is damaged."""
        if self.extractor.reference is None:
            self._compare()
        return self.extractor

    def _compare(self) -> None:
        reference = Reference.of(self.extractor.backend, paths.TARGET, self.profile)
        sequences = max((work.sequences for work in self.works), key=len)
        first = range(min(CANDIDATES, len(sequences)))
        chosen = fixture_sequences(
            [sequences.sequence_ids[index] for index in first], [sequences.ids(index) for index in first]
        )
        result = check_fixture(self.extractor.backend, self.extractor.head, reference, chosen)
        if self.ranks.rank == 0:
            self.journal.keep_fixture(result.report())
        self.extractor = replace(self.extractor, reference=reference)

    def compute(self) -> None:
        """Compute every shard that is missing, together with the other ranks.

        Raises:
            GateError: states are wrong or do not predict the generated tokens.
        """
        total = total_of(self.works)
        logger.info("hidden states of %s sequences, %.2f GB", f"{total.sequences:,}", total.bytes / 1e9)
        extract_shards(
            self._checked, self.works, self.ranks, Progress(total, self.ranks, self.journal.folder)
        )

    def publish(self, guard: Guard) -> None:
        """Make the stores of all finished shards, all splits or none.

        Raises:
            ChangedWhileRunning: params or code changed under the run.
            GateError: all shards together do not predict the generated tokens.
        """
        report: dict[str, Any] = {}
        linked = can_link(self.journal.folder, paths.HIDDEN)
        for torn in paths.HIDDEN.glob("*.tmp"):  # what a run was publishing when it was killed
            shutil.rmtree(torn)
        with ExitStack() as stores:
            for work in self.works:
                directory = stores.enter_context(atomic_directory(paths.hidden(work.split)))
                report[work.split] = work.publish(directory).report()
            guard.check()
        write_report(paths.EXTRACTION_REPORT, report | {"fixture": self.journal.kept_fixture()})
        self.journal.finish(keep=linked)

    def _check_disk(self) -> None:
        """Old journals make room where it is needed, the oldest first."""
        sizes = [work.file_bytes for work in self.works]
        missing = sum(
            each[number] for each, numbers in zip(sizes, self.missing, strict=True) for number in numbers
        )
        wanted = needs(
            Sizes(all=sum(map(sum, sizes)), missing=missing),
            self.journal.folder, paths.HIDDEN, dvc_cache(existing(paths.PARAMS).parent),
        )  # fmt: skip
        old = leftovers(self.journal.folder)
        if old:
            held = sum(leftover.bytes for leftover in old) / 1e9
            logger.info(
                "%d unfinished extractions of other params or sequences hold %.2f GB in %s; the oldest is removed first "
                "where space is needed", len(old), held, self.journal.folder.parent,
            )  # fmt: skip
        while True:
            try:
                return check_disk(wanted)
            except GateError:
                if not old:
                    raise
                logger.warning("removing %s to make room for %.2f GB", old[0].folder, old[0].bytes / 1e9)
                old.pop(0).remove()


def _server_setting(server: ServerParams, splits: dict[str, Sequences]) -> ServerSetting:
    def name_of(tokens: Sequence[int]) -> str:
        ids = list(tokens)
        for sequences in splits.values():
            for index, length in enumerate(sequences.lengths.tolist()):
                if length == len(ids) and sequences.ids(index) == ids:
                    return sequences.sequence_ids[index]
        return f"a sequence of {len(ids)} tokens that begins with {ids[:8]}"

    longest = max((int(sequences.lengths.max(initial=0)) for sequences in splits.values()), default=0)
    return ServerSetting(server, server_folder(), longest, name_of)
