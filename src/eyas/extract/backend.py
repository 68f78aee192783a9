"""Where hidden states come from: the protocol, and the target's forward pass with transformers in this process.

Letters in shape comments: B batch, T tokens, H hidden size, A aux layers, N layers.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import cached_property
from importlib.metadata import version
from typing import Any, Protocol

import torch
from torch import Tensor

from eyas.allocator import keep_freed_memory
from eyas.errors import InputError
from eyas.extract.packing import check_rotation, depends_on_batch, packed_attention, why_unpackable
from eyas.extract.prefixes import MIN_SHARED, Packing, pack
from eyas.gemm import FastLinear
from eyas.target.model import TargetStates, capture, decoder_of, home_of

logger = logging.getLogger("eyas.extract")

MAX_PADDING = 0.1
"""Largest share of padding of a sequence in a padded batch."""
PROBE_LENGTHS = (3 * MIN_SHARED, 2 * MIN_SHARED, MIN_SHARED + 1)
TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 5e-2, torch.float16: 1e-2}
"""Largest mean difference of packed from separate states, relative to the length of the vectors."""


class Backend(Protocol):
    """Gives the target's hidden states of token sequences."""

    @property
    def name(self) -> str:
        """As the manifest shows it."""

    @property
    def versions(self) -> dict[str, str]:
        """Package -> version of what computes the states."""

    @property
    def aux_layer_ids(self) -> Sequence[int]:
        """Indices of `hidden_states`: j is the residual stream that enters layer j."""

    def states(self, sequences: Sequence[Sequence[int]]) -> list[TargetStates]:
        """Aux [T, A, H] and last [T, H], before the final norm, of each sequence, in the target's dtype.

        The sequences are computed together. Tensors of different sequences may be views of the same memory and may
        lie on a GPU.
        """

    def close(self) -> None:
        """Give back processes and memory."""


class TransformersBackend:
    """The target's layers, run by transformers.

    Sequences of a batch are packed into one row without padding, tokens that several begin with only once. Targets
    whose layers can't be packed (recurrent layers, attention with sinks or soft caps) get padded batches; that is found
    out by comparing both ways on a few tokens before the first batch.
    """

    def __init__(
        self,
        model: Any,
        aux_layer_ids: Sequence[int],
        device: torch.device | None = None,
        min_shared: int = MIN_SHARED,
    ) -> None:
        """Use a model of load_target.

        Args:
            model: its layers may lie on several devices.
            aux_layer_ids: within 1..N-1.
            device: where the states are gathered; None: where the last layer computes.
            min_shared: first tokens that sequences must share to have them computed once.

        Raises:
            InputError: the model has no stack of layers with a final norm, or a rotary embedding with a memory.
        """
        self.model = model
        self.aux_layer_ids = list(aux_layer_ids)
        self._decoder = decoder_of(model)
        check_rotation(self._decoder)
        self._min_shared = min_shared
        self.device = home_of(self._decoder) if device is None else device
        if self.device.type == "cpu":
            keep_freed_memory()

    @property
    def name(self) -> str:
        """As the manifest shows it."""
        return "transformers"

    @property
    def versions(self) -> dict[str, str]:
        """Package -> version of what computes the states."""
        return {package: version(package) for package in ("torch", "transformers")}

    def states(self, sequences: Sequence[Sequence[int]]) -> list[TargetStates]:
        """Aux [T, A, H] and last [T, H] of each sequence, computed as one batch."""
        if self.unpackable is None:
            return self._packed(pack(sequences, self._min_shared))
        return self._padded(sequences)

    @torch.inference_mode()
    def reference(self, tokens: Sequence[int]) -> list[Tensor]:
        """The model's own `hidden_states` of one sequence, N + 1 times [T, H]; the last is after the final norm."""
        ids = torch.tensor([list(tokens)], device=self._input_device)
        output = self.model(input_ids=ids, output_hidden_states=True, use_cache=False)
        return [states[0].to(self.device) for states in output.hidden_states]

    def close(self) -> None:
        """Nothing is held beside the model."""

    @cached_property
    def unpackable(self) -> str | None:
        """Why batches are padded and not packed; None if they are packed."""
        reason = why_unpackable(self._decoder)
        if reason is None and depends_on_batch(self._decoder):
            reason = "its rotary embedding depends on the longest sequence of a batch"
        reason = reason or self._probe()
        if reason is not None:
            logger.info("sequences are padded, not packed: %s", reason)
        return reason

    def _probe(self) -> str | None:
        """Compare packed and separate states of random tokens; None if they are the same."""
        random = torch.Generator().manual_seed(0)
        vocab_size = self.model.get_input_embeddings().num_embeddings
        shared = torch.randint(vocab_size, (MIN_SHARED,), generator=random).tolist()
        drawn = [torch.randint(vocab_size, (length,), generator=random).tolist() for length in PROBE_LENGTHS]
        sequences = [*(shared + tokens for tokens in drawn), *drawn]
        try:
            packed = self._packed(pack(sequences))
        except (InputError, TypeError, ValueError, RuntimeError) as error:
            return f"its attention takes no packed sequences ({error})"
        for found, tokens in zip(packed, sequences, strict=True):
            expected = self._padded([tokens])[0]
            difference = _difference(found.last, expected.last)
            if not difference <= TOLERANCE.get(found.last.dtype, TOLERANCE[torch.bfloat16]):
                return f"packed states differ from separate ones by {difference:.2g} of their length"
        return None

    def _packed(self, packing: Packing) -> list[TargetStates]:
        """States of a packed row, cut into those of its sequences."""
        with packed_attention(self._decoder):
            row = self._capture(
                [packing.token_ids],
                position_ids=torch.tensor([packing.positions], device=self._input_device),
                packing=packing,
            )
        return [
            TargetStates(aux=_gathered(row.aux[0], rows), last=_gathered(row.last[0], rows))
            for rows in packing.rows
        ]

    def _padded(self, sequences: Sequence[Sequence[int]]) -> list[TargetStates]:
        """States of batches with at most MAX_PADDING padding, each of no more tokens than a packed row would have.

        Padding is on the right and no mask is passed: causal attention never lets a token see what follows it.
        """
        found: dict[int, TargetStates] = {}
        for group in self._groups(list(map(len, sequences)), len(pack(sequences).token_ids)):
            longest = len(sequences[group[0]])
            padded = [[*sequences[index], *[0] * (longest - len(sequences[index]))] for index in group]
            batch = self._capture(padded)
            for row, index in enumerate(group):
                length = len(sequences[index])
                found[index] = TargetStates(aux=batch.aux[row, :length], last=batch.last[row, :length])
        return [found[index] for index in range(len(sequences))]

    def _groups(self, lengths: Sequence[int], most_tokens: int) -> list[list[int]]:
        """Indices of sequences that are padded to the same length, the longest first."""
        groups: list[list[int]] = []
        alone = depends_on_batch(self._decoder)
        for index in sorted(range(len(lengths)), key=lambda index: (-lengths[index], index)):
            longest = lengths[groups[-1][0]] if groups else 0
            fits = bool(groups) and (len(groups[-1]) + 1) * longest <= most_tokens
            if fits and not alone and lengths[index] >= (1 - MAX_PADDING) * longest:
                groups[-1].append(index)
            else:
                groups.append([index])
        return groups

    @torch.inference_mode()
    def _capture(self, rows: Sequence[Sequence[int]], **kwargs: Any) -> TargetStates:
        """States [B, T, ...] of rows of equal length, on this backend's device."""
        ids = torch.tensor(rows, device=self._input_device)  # [B, T]
        with FastLinear():
            states = capture(self.model, ids, None, self.aux_layer_ids, **kwargs)
        return TargetStates(aux=states.aux.to(self.device), last=states.last.to(self.device))

    @property
    def _input_device(self) -> torch.device:
        device: torch.device = self.model.get_input_embeddings().weight.device
        return torch.device("cpu") if device.type == "meta" else device


@torch.inference_mode()
def _gathered(states: Tensor, rows: Sequence[range]) -> Tensor:
    """[T, ...] the states at some rows; a view if they are neighbours."""
    parts = [states[part.start : part.stop] for part in rows]
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _difference(found: Tensor, expected: Tensor) -> float:
    """Mean over vectors [T, H] of the length of the difference, relative to the expected length."""
    found, expected = found.float(), expected.float()
    relative = (found - expected).norm(dim=-1) / expected.norm(dim=-1).clamp_min(1e-6)
    return float(relative.mean())
