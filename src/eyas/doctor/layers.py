"""Hidden states of layers that were not stored, from the target itself, and those of a target that is not the same.

The target runs in transformers, in its own dtype, over the stored tokens.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from eyas.errors import EyasError, InputError
from eyas.referee.drafting import Answered

logger = logging.getLogger(__name__)

MAX_WEIGHT_BYTES = 6 << 30
"""Larger targets are not loaded for a diagnosis."""
QUANTISED_BITS = 4
"""Of the weights of a target that stands for quantised ones: rounded by rows, the coarsest in wide use."""


class LayerStates:
    """Recomputes what was not stored; loads the target once, when first asked."""

    def __init__(self, directory: Path, dtype: str, *, trust_remote_code: bool = False) -> None:
        self._directory, self._dtype, self._trust = directory, dtype, trust_remote_code
        self._model: Any = None
        self._quantised = False
        self._seen: dict[tuple[str, int, bool], dict[int, NDArray[np.float32]]] = {}
        self._greedy: dict[tuple[str, int, bool], NDArray[np.int64]] = {}
        self._watched: set[int] = set()
        self.unavailable: str | None = None
        """Why there are no such states; None while nothing was in the way."""

    def watch(self, layer_ids: Iterable[int]) -> None:
        """Layers whose states are kept whenever the target runs, because they may be asked for next."""
        self._watched |= set(layer_ids)

    def of(
        self, answers: Sequence[Answered], layer_ids: Sequence[int], *, quantised: bool = False
    ) -> list[Answered] | None:
        """Answers with the states of these layers; None if the target can't be run here.

        Args:
            answers: tokens of prompts and answers.
            layer_ids: hidden_states indices, 1 to N-1.
            quantised: of the target with weights rounded to QUANTISED_BITS; the target's choices are then its own.
        """
        missing = [each for each in answers if not self._has(each, layer_ids, quantised)]
        if missing and not self._load(quantised):
            return None
        for each in missing:
            if not self._run(each, layer_ids, quantised):
                return None
        return [self._dressed(each, layer_ids, quantised) for each in answers]

    def _has(self, answer: Answered, layer_ids: Sequence[int], quantised: bool) -> bool:
        known = self._seen.get(_key(answer, quantised), {})
        return all(number in known for number in layer_ids)

    def _dressed(self, answer: Answered, layer_ids: Sequence[int], quantised: bool) -> Answered:
        key = _key(answer, quantised)
        aux = np.stack([self._seen[key][number] for number in layer_ids], axis=1)
        return replace(answer, aux=aux, greedy=self._greedy[key])

    def _load(self, quantised: bool) -> bool:
        if self._model is not None and self._quantised == quantised:
            return True
        if self.unavailable is not None:
            return False
        size = sum(file.stat().st_size for file in self._directory.glob("*.safetensors"))
        if size > MAX_WEIGHT_BYTES:
            self.unavailable = f"the target's {size / 2**30:.0f} GiB are too much to load here"
            return False
        try:
            from eyas.target.model import load_target

            self._model = load_target(self._directory, self._dtype, trust_remote_code=self._trust)
        except (EyasError, ImportError) as error:
            self.unavailable = f"the target can't be loaded: {getattr(error, 'what', error)}"
            return False
        if quantised:
            _round_weights(self._model)
        self._quantised = quantised
        return True

    def _run(self, answer: Answered, layer_ids: Sequence[int], quantised: bool) -> bool:
        import torch

        from eyas.target.model import capture, decoder_of

        key = _key(answer, quantised)
        wanted = sorted({*layer_ids, *self._watched, *self._seen.get(key, {})})
        try:
            states = capture(self._model, torch.from_numpy(answer.token_ids)[None], None, wanted)
            normed = decoder_of(self._model).norm(states.last[0])
        except InputError as error:
            self.unavailable = error.what
            return False
        with torch.inference_mode():
            greedy = self._model.get_output_embeddings()(normed).argmax(dim=-1)
        self._greedy[key] = greedy.numpy()
        self._seen[key] = {
            number: states.aux[0, :, column].float().numpy() for column, number in enumerate(wanted)
        }
        return True


def _key(answer: Answered, quantised: bool) -> tuple[str, int, bool]:
    return answer.sequence_id, len(answer.token_ids), quantised


def _round_weights(model: Any) -> None:
    """Every matrix of the layers rounded to nearest by rows; embedding and head stay, as quantisers leave them."""
    import torch
    from torch import nn

    levels = 2 ** (QUANTISED_BITS - 1) - 1
    head = model.get_output_embeddings()
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.Linear) and module is not head:
                scale = module.weight.abs().amax(dim=-1, keepdim=True).clamp_min(1e-12) / levels
                module.weight.copy_((module.weight / scale).round() * scale)
