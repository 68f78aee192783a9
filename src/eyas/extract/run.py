"""Extracting a split: states of every sequence into a store, in the order of its table.

Letters in shape comments: T tokens, H hidden size, A aux layers, G generated tokens, L labelled positions.
"""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from eyas.errors import GateError
from eyas.extract.backend import Predictions, TransformersBackend, predict
from eyas.extract.batches import plan_batches, plan_windows
from eyas.extract.gate import Agreement, Disagreement, check_states
from eyas.extract.params import ExtractParams
from eyas.extract.progress import Progress
from eyas.extract.table import Sequences
from eyas.metrics import share
from eyas.shards import SequenceStates, ShardWriter, StoreMeta, label_positions, sequence_bytes
from eyas.target.model import TargetHead, TargetStates, load_target
from eyas.target.spec import TargetProfile

FREE_BYTES = 512 << 20
"""Disk that must stay free beside the store."""


@dataclass(frozen=True)
class SplitResult:
    """What was written."""

    bytes: int
    datasets: dict[str, dict[str, Any]]
    """Per dataset: sequences, tokens, labels, generated tokens checked, and the share that agreed."""
    largest: dict[str, float]
    """Largest absolute value per aux layer and of the last state."""

    def report(self) -> dict[str, Any]:
        """For reports/extraction.json. Largest values to three digits: kernels differ in the last ones."""
        largest = {name: float(f"{value:.3g}") for name, value in self.largest.items()}
        return {"bytes": self.bytes, "largest_value": largest, "datasets": self.datasets}


@dataclass(frozen=True)
class Extractor:
    """Computes states and writes them."""

    backend: TransformersBackend
    head: TargetHead
    meta: StoreMeta
    batch_tokens: int
    shard_bytes: int
    min_agreement: float

    @classmethod
    def load(cls, directory: Path, profile: TargetProfile, params: ExtractParams) -> Extractor:
        """Load the target in its own dtype, on a GPU if there is one.

        Raises:
            InputError: the target can't be loaded.
        """
        if "OMP_NUM_THREADS" not in os.environ:
            torch.set_num_threads(len(os.sched_getaffinity(0)))
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        model = load_target(directory, profile.dtype, trust_remote_code=profile.trust_remote_code).to(device)
        meta = StoreMeta(
            target_digest=profile.digest,
            target_name=profile.name,
            dtype=params.dtype,
            aux_layer_ids=profile.aux_layer_ids,
            backend="transformers",
            versions={package: version(package) for package in ("torch", "transformers")},
        )
        return cls(
            backend=TransformersBackend(model, profile.aux_layer_ids, device),
            head=TargetHead.read(directory, profile, profile.dtype).to(device),
            meta=meta,
            batch_tokens=params.batch_tokens,
            shard_bytes=params.shard_bytes,
            min_agreement=params.min_agreement,
        )

    def extract(self, name: str, sequences: Sequences, directory: Path) -> SplitResult:
        """Write the store of a split into `directory`, a window of about one shard at a time.

        Raises:
            GateError: states are not finite, are constant, or do not predict the generated tokens.
        """
        writer = ShardWriter(directory, self.meta, self.shard_bytes)
        agreement = Agreement(_per_dataset(sequences, sequences.checked_counts), self.min_agreement)
        largest = torch.zeros(len(self.meta.aux_layer_ids) + 1)
        lengths = sequences.lengths
        progress = Progress(name, sum(lengths))
        for window in plan_windows(self.sizes(sequences), self.shard_bytes):
            held: dict[int, SequenceStates] = {}
            for batch in plan_batches(lengths, window, self.batch_tokens):
                computed = self.backend.states([sequences.token_ids[index] for index in batch])
                for index, states in zip(batch, computed, strict=True):
                    check_states(sequences.sequence_ids[index], sequences.token_ids[index], states)
                    largest = torch.maximum(largest, _largest(states))
                predicted = self._predict(sequences, batch, computed)
                for index, states, said in zip(batch, computed, predicted, strict=True):
                    held[index] = self._label(sequences, index, states, said, agreement)
                progress.add(sum(lengths[index] for index in batch))
            agreement.check()
            for index in window:
                writer.add(held[index])
        names = [*map(str, self.meta.aux_layer_ids), "last"]
        progress.finish()
        return SplitResult(
            bytes=writer.close(),
            datasets=_counts(sequences, agreement),
            largest=dict(zip(names, largest.tolist(), strict=True)),
        )

    def sizes(self, sequences: Sequences) -> list[int]:
        """Bytes of each sequence in the store."""
        hidden_size = self.head.embedding.shape[1]
        return [
            sequence_bytes(tokens, labels, len(self.meta.aux_layer_ids), hidden_size, self.meta.dtype)
            for tokens, labels in zip(sequences.lengths, sequences.label_counts, strict=True)
        ]

    def _predict(
        self, sequences: Sequences, batch: Sequence[int], computed: Sequence[TargetStates]
    ) -> list[Predictions]:
        """Apply the head where a generated token follows, to a whole batch at a time: its matrix is large."""
        before = [_before_generated(sequences.loss_masks[index]) for index in batch]
        following = [
            torch.tensor(sequences.token_ids[index])[positions + 1]
            for index, positions in zip(batch, before, strict=True)
        ]
        last = [states.last[positions] for states, positions in zip(computed, before, strict=True)]
        device = computed[0].last.device
        predicted = predict(self.head, torch.cat(last), torch.cat(following).to(device)).cpu()
        return predicted.split([len(positions) for positions in before])

    def _label(
        self,
        sequences: Sequences,
        index: int,
        states: TargetStates,
        predicted: Predictions,
        agreement: Agreement,
    ) -> SequenceStates:
        """Compare the target's predictions with the generated tokens, and keep what is a label."""
        tokens = torch.tensor(sequences.token_ids[index])  # [T]
        mask = torch.tensor(sequences.loss_masks[index])  # [T]
        before = _before_generated(sequences.loss_masks[index])  # [G]
        following = tokens[before + 1]
        wrong = [
            Disagreement(
                sequence_id=sequences.sequence_ids[index],
                position=int(before[at]) + 1,
                token=int(following[at]),
                argmax=int(predicted.argmax[at]),
                margin=float(predicted.margin[at]),
            )
            for at in torch.nonzero(predicted.argmax != following).flatten().tolist()
        ]
        agreement.add(sequences.datasets[index], len(before), wrong)
        labelled = mask[before]  # [G] -> L of them
        positions = label_positions(mask)
        return SequenceStates(
            sequence_id=sequences.sequence_ids[index],
            token_ids=tokens,
            loss_mask=mask,
            aux=states.aux.to("cpu", getattr(torch, self.meta.dtype), copy=True),
            label_positions=positions,
            last=states.last[positions.to(states.last.device)].to("cpu", getattr(torch, self.meta.dtype)),
            argmax=predicted.argmax[labelled],
            logsumexp=predicted.logsumexp[labelled],
        )


def check_disk(needed: int, directory: Path) -> None:
    """Refuse to start what can't be finished.

    Raises:
        GateError: says how many bytes are needed and free.
    """
    free = shutil.disk_usage(directory).free
    if needed + FREE_BYTES > free:
        raise GateError(
            f"the hidden states need {needed / 1e9:.2f} GB, the disk has {free / 1e9:.2f} GB free",
            where=str(directory.resolve()),
            hint="free disk space, use extract.dtype: bfloat16, or extract fewer or shorter sequences. "
            "A DVC cache that copies instead of linking needs the same space again",
        )


def _before_generated(loss_mask: Sequence[bool]) -> torch.Tensor:
    """[G] positions whose distribution predicts a generated token."""
    return torch.nonzero(torch.tensor(loss_mask)[1:]).flatten()


def _largest(states: TargetStates) -> torch.Tensor:
    """[A + 1] largest absolute values."""
    return torch.cat([states.aux.abs().amax(dim=(0, 2)), states.last.abs().amax()[None]]).float().cpu()


def _per_dataset(sequences: Sequences, values: Sequence[int]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for dataset, value in zip(sequences.datasets, values, strict=True):
        total[dataset] += value
    return dict(total)


def _counts(sequences: Sequences, agreement: Agreement) -> dict[str, dict[str, Any]]:
    tokens = _per_dataset(sequences, sequences.lengths)
    labels = _per_dataset(sequences, sequences.label_counts)
    rows = Counter(sequences.datasets)
    return {
        dataset: {
            "sequences": rows[dataset],
            "tokens": tokens[dataset],
            "labels": labels[dataset],
            "generated_tokens": agreement.checked[dataset],
            "agreement": share(agreement.agreed[dataset], agreement.checked[dataset]),
        }
        for dataset in sorted(rows)
    }
