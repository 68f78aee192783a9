"""Computing shards: the states of their sequences, checked and brought into the form that is stored."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path

import torch

from eyas.compute import ComputeParams
from eyas.errors import GateError
from eyas.extract.agreement import Agreement
from eyas.extract.backend import Backend, TransformersBackend
from eyas.extract.backends import ServerSetting, load_backend
from eyas.extract.batches import plan_batches, plan_windows
from eyas.extract.facts import Facts
from eyas.extract.fixture import FixtureSequence, check_spot
from eyas.extract.gate import check_states
from eyas.extract.labels import Columns, predict_generated, sequence_states
from eyas.extract.launch import device_of
from eyas.extract.memory import told_when_out_of_memory, told_when_too_large
from eyas.extract.params import ExtractParams
from eyas.extract.parts import Parts, Writer
from eyas.extract.progress import Progress
from eyas.extract.publish import SplitResult
from eyas.extract.ranks import Alone, Ranks
from eyas.extract.reference import Reference
from eyas.extract.rules import Rules
from eyas.extract.table import Sequences
from eyas.extract.work import Work, total_of
from eyas.sampling import GREEDY, Sampling
from eyas.shards import StoreMeta, sequence_bytes, to_stored
from eyas.states import StoredStates
from eyas.target.model import TargetHead, TargetStates
from eyas.target.spec import TargetProfile


@dataclass(frozen=True)
class Computed:
    """A shard that is not written yet."""

    sequences: list[StoredStates]
    facts: Facts


@dataclass(frozen=True)
class Extractor:
    """Computes the states of sequences, checks them, and brings them into the form that is stored."""

    backend: Backend
    head: TargetHead
    meta: StoreMeta
    """Of the stores, but for the digest of a split's sequences."""
    params: ExtractParams
    rules: Rules
    reference: Reference | None = None
    """With it, the states of one sequence of each shard are compared with the model's own."""

    @classmethod
    def load(
        cls,
        directory: Path,
        profile: TargetProfile,
        params: ExtractParams,
        compute: ComputeParams,
        *,
        sampling: Sampling = GREEDY,
        device: torch.device | None = None,
        server: ServerSetting | None = None,
    ) -> Extractor:
        """Load the target in its own dtype.

        Args:
            directory: the target's files.
            profile: of the target.
            params: section `extract`.
            compute: section `compute`.
            sampling: how the answers were sampled.
            device: where this process computes; None: as `compute` says for a process that is alone.
            server: for backends that start one.

        Raises:
            InputError: the target can't be loaded, or the backend can't run it.
        """
        device = device_of(compute.accelerator) if device is None else device
        backend = load_backend(directory, profile, params, compute, device, server)
        meta = StoreMeta(
            target_digest=profile.digest,
            target_name=profile.name,
            target_revision=profile.revision,
            source_digest="",
            dtype=params.dtype,
            aux_layer_ids=profile.aux_layer_ids,
            backend=backend.name,
            versions=dict(backend.versions),
        )
        home = backend.device if isinstance(backend, TransformersBackend) else device
        with told_when_too_large(str(home), "the target's head, beside its layers,"):
            head = TargetHead.read(directory, profile, profile.dtype).to(home)
        rules = Rules(sampling, profile.dtype, params.min_agreement, params.max_sampling_z or inf)
        return cls(backend, head, meta, params, rules)

    def work(self, split: str, sequences: Sequences, folder: Path) -> Work:
        """Plan the shards of a split, which are written into `folder`."""
        sizes = self.sizes(sequences)
        windows = plan_windows(sizes, self.params.shard_bytes)
        return Work(
            split=split,
            sequences=sequences,
            windows=windows,
            sizes=[sum(sizes[window.start : window.stop]) for window in windows],
            parts=Parts(folder, replace(self.meta, source_digest=sequences.source_digest)),
            agreement=Agreement(self.rules, sequences.per_dataset(sequences.checked_counts)),
        )

    def sizes(self, sequences: Sequences) -> list[int]:
        """Bytes of each sequence in the store."""
        layers, hidden_size = len(self.meta.aux_layer_ids), self.head.embedding.shape[1]
        return [
            sequence_bytes(tokens, labels, layers, hidden_size, self.meta.dtype)
            for tokens, labels in zip(
                sequences.lengths.tolist(), sequences.label_counts.tolist(), strict=True
            )
        ]

    def batches(self, work: Work, number: int) -> list[list[int]]:
        """The sequences of a shard that are computed together."""
        window, most = work.windows[number], self.params.batch_tokens
        if self.backend.name == "vllm":
            lengths = work.sequences.lengths[window.start : window.stop].tolist()
            planned: list[range] | list[list[int]] = plan_windows(lengths, most)
        else:
            planned = plan_batches([work.sequences.ids(index) for index in window], most)
        return [[window.start + at for at in batch] for batch in planned]

    def compute(self, work: Work, number: int, advance: Callable[[int], None]) -> Computed:
        """Compute a shard; `advance` is told the tokens of each batch.

        Raises:
            GateError: states are not finite, constant, or not the model's own, or there is not enough memory.
        """
        facts = Facts.none(work.agreement.fresh(), work.layers)
        window = work.windows[number]
        spot = window[number % len(window)]
        stored: dict[int, StoredStates] = {}
        for batch in self.batches(work, number):
            stored |= self.compute_batch(work, batch, facts, spot)
            advance(sum(stored[index].tokens for index in batch))
        return Computed([stored[index] for index in window], facts)

    def compute_batch(
        self, work: Work, batch: Sequence[int], facts: Facts, spot: int | None = None
    ) -> dict[int, StoredStates]:
        """Compute, check and encode some sequences together, by their numbers in the split; `facts` counts them.

        Raises:
            GateError: as compute.
        """
        sequences = work.sequences
        ids = [sequences.ids(index) for index in batch]
        names = [sequences.sequence_ids[index] for index in batch]
        columns = [Columns.of(sequences, index) for index in batch]
        stored = {}
        with told_when_out_of_memory(names, [len(each) for each in ids]):
            computed = self.backend.states(ids)
            for index, name, tokens, states in zip(batch, names, ids, computed, strict=True):
                facts.add_largest(check_states(name, tokens, states))
                if index == spot:
                    self._check_spot(FixtureSequence(name, tokens), states)
            predicted = predict_generated(self.head, computed, columns, self.rules.sampling)
            for index, name, each, states, said in zip(
                batch, names, columns, computed, predicted, strict=True
            ):
                if not bool(torch.isfinite(said.logsumexp).all()):
                    raise GateError(
                        "the target's logits are not finite",
                        where=name,
                        hint="the head of models/target is damaged, or overflows in target.dtype",
                    )
                generated = each.generated
                facts.agreement.add(
                    name, sequences.datasets[index], generated.before, generated.following, said
                )
                kept = sequence_states(sequences, index, each, states, said)
                stored[index] = to_stored(kept, self.meta)
                if index == batch[0]:  # enough to know the storage type by, and cheap on a GPU
                    facts.add_rounding(kept, stored[index])
        return stored

    def _check_spot(self, sequence: FixtureSequence, states: TargetStates) -> None:
        if self.reference is not None:
            check_spot(self.head, self.meta.aux_layer_ids, self.reference, sequence, states)

    def extract(self, name: str, sequences: Sequences, directory: Path) -> SplitResult:
        """Write the store of a split into `directory`, which must be empty or not exist, without a journal.

        Raises:
            GateError: states are wrong or do not predict the generated tokens.
        """
        directory.mkdir(parents=True, exist_ok=True)
        folder = directory.with_name(f"{directory.name}.parts")
        ranks = Alone(torch.device("cpu"))
        try:
            work = self.work(name, sequences, folder)
            extract_shards(lambda: self, [work], ranks, Progress(total_of([work]), ranks))
            return work.publish(directory)
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def extract_shards(
    checked: Callable[[], Extractor], works: Sequence[Work], ranks: Ranks, progress: Progress
) -> None:
    """Compute every shard of some splits that is not finished, together with the other ranks.

    While a shard is written, the next one is computed.

    Args:
        checked: gives the extractor for a shard; called only where one must be computed, which may turn out late:
            when a shard that seemed finished is damaged.
        works: the splits.
        ranks: this process among the others.
        progress: is told what is done.

    Raises:
        GateError: states are wrong or do not predict the generated tokens.
    """
    tasks = [(work, number) for work in works for number in range(len(work.windows))]
    found = {work.split: work.agreement.fresh() for work in works}

    def advance(tokens: int) -> None:
        ranks.check()
        progress.computed(tokens)

    with progress, Writer(progress.written) as writer:
        for claimed in ranks.claims(len(tasks)):
            work, number = tasks[claimed]
            part = work.parts.verified(number, work.ids(number))
            if part is None:
                computed = checked().compute(work, number, advance)
                found[work.split].merge(computed.facts.agreement)
                found[work.split].check()
                writer.submit(work.parts, number, computed.sequences, computed.facts)
            else:
                found[work.split].load(part.facts["agreement"])
                found[work.split].check()
                progress.resumed(work.tokens(number), part.shard.bytes)
        writer.wait()
        ranks.meet("computed", progress.show)
