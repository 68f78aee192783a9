"""Runs a reading as an engine does, for all anchors of some sequences at once.

An engine drafts from anchor p after the tokens 0..p+1 are known. Its first pass covers slots 0..p, slot i made of
token i+1 and the fused target states of token i, at position i (vLLM's `set_inputs_first_pass`). Each further pass
is one slot: the token just drafted and the drafter's own output, one position further. What an earlier draft left
in the cache is overwritten by the next first pass, so every anchor sees step-0 slots 0..p and its own steps.

Equations: EAGLE-3 (arXiv:2503.01840), as in vLLM 0.32 and SGLang 0.5.
Letters: T tokens of a sequence, N slots of all sequences, R anchors still drafting, H hidden size, D head size,
Q query heads, K kv heads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from eyas.referee.reading import Reading
from eyas.referee.rope import rotation
from eyas.referee.tensorfile import Floats, Integers

SCORES_AT_ONCE = 1 << 24
"""Attention scores held in memory at once."""


@dataclass(frozen=True)
class Answered:
    """A prompt with its answer, and what the target's layers held while it ran over them."""

    sequence_id: str
    token_ids: Integers
    """[T]"""
    first: int
    """Number of the first answer token."""
    aux: NDArray[Any]
    """[T, A, H_t], in the order in which the layers lie in the target."""
    greedy: Integers
    """[T]: the target's most likely token after each token; -1 where it is not known."""

    @property
    def anchors(self) -> Integers:
        """Slots from which a draft can start: both the token fed and the first one drafted are in the answer."""
        return np.arange(max(self.first - 1, 0), len(self.token_ids) - 2)


class Drafting:
    """Draft passes over all anchors of some sequences.

    `logits` [R, Vd] belong to the anchors that still draft, as do `final` [R, H], what the head reads, and `fed_back`
    [R, H], the features of the next pass.
    """

    final: Floats

    def __init__(
        self, reading: Reading, sequences: Sequence[Answered], features: Floats | None = None
    ) -> None:
        """Run the first pass.

        Args:
            reading: what the engine computes with.
            sequences: at least one of them with an anchor.
            features: [N, H], of slots 0..T-2 of every sequence; None: fused from the aux states.
        """
        self._reading = reading
        shape = reading.shape
        self._head = np.asarray(reading.head[:])
        tokens = np.concatenate([each.token_ids[1:] for each in sequences])
        if features is None:
            features = self.fused(np.concatenate([each.aux[:-1] for each in sequences]))
        starts = np.cumsum([0, *(len(each.token_ids) - 1 for each in sequences)])
        counts = [len(each.anchors) for each in sequences]
        self.anchors = np.concatenate(
            [each.anchors for each in sequences]
        )  # [R] slots within their sequences
        self.sequence = np.repeat(np.arange(len(sequences)), counts)  # [R]
        wide, normed = self._inputs(tokens, features)
        positions = np.concatenate([np.arange(len(each.token_ids) - 1) for each in sequences])
        keys, values = self._keys_values(wide, positions)
        cuts = starts[1:-1]
        self._keys, self._values = np.split(keys, cuts), np.split(values, cuts)
        rows = starts[self.sequence] + self.anchors
        self._own_keys: list[Floats] = []
        self._own_values: list[Floats] = []
        self._step = 0
        self._shape = shape
        self.logits, self.fed_back = self._finish(features[rows], normed[rows], wide[rows])

    def proposals(self) -> Integers:
        """The most likely draft tokens of the anchors that still draft, as target ids [R]."""
        best: Integers = self._reading.target_ids[np.argmax(self.logits, axis=-1)]
        return best

    def advance(self, tokens: Integers, kept: NDArray[np.bool_]) -> None:
        """One more pass, fed with tokens [R], for the anchors that are kept [R]."""
        self._step += 1
        self.anchors, self.sequence, features = self.anchors[kept], self.sequence[kept], self.fed_back[kept]
        self._own_keys = [keys[kept] for keys in self._own_keys]
        self._own_values = [values[kept] for values in self._own_values]
        wide, normed = self._inputs(tokens[kept], features)
        keys, values = self._keys_values(wide, self._positions())
        self._own_keys.append(keys)
        self._own_values.append(values)
        self.logits, self.fed_back = self._finish(features, normed, wide)

    def _positions(self) -> Integers:
        positions: Integers = self.anchors + (self._step if self._reading.positions_advance else 0)
        return positions

    def fused(self, aux: NDArray[Any]) -> Floats:
        """Features of slots from the aux states of their tokens: [N, A, H_t] -> [N, H]."""
        flags, weights = self._reading.flags, self._reading.weights
        aux = aux.astype(np.float32)
        if flags.fc_norm:
            layers = range(aux.shape[1])
            aux = np.stack([self._rms(aux[:, layer], f"fc_norm.{layer}") for layer in layers], axis=1)
        flat: Floats = aux.reshape(len(aux), -1)
        if flags.norm_before_fc:
            flat = self._rms(flat, "input_norm")
        fused: Floats = flat @ weights["fc"].T
        return fused

    def _inputs(self, tokens: Integers, features: Floats) -> tuple[Floats, Floats]:
        """What the projections read [N, 2H], and the normed feature [N, H]."""
        known = np.clip(tokens, 0, self._reading.embedding.shape[0] - 1)
        unique, places = np.unique(known, return_inverse=True)  # rows on disk are read once
        embedded = self._rms(np.asarray(self._reading.embedding[unique]), "input_layernorm")[places]
        normed = self._rms(features, "hidden_norm")
        return np.concatenate([embedded, normed], axis=-1), normed

    def _keys_values(self, wide: Floats, positions: Integers) -> tuple[Floats, Floats]:
        """Rotated keys and values, [N, K, D] each."""
        keys = self._heads(wide @ self._reading.weights["k_proj"].T)
        return self._rotated(keys, positions), self._heads(wide @ self._reading.weights["v_proj"].T)

    def _finish(self, features: Floats, normed: Floats, wide: Floats) -> tuple[Floats, Floats]:
        """From the inputs of anchors to their logits [R, Vd] and what the next pass is fed [R, H]."""
        flags, weights = self._reading.flags, self._reading.weights
        queries = self._rotated(self._heads(wide @ weights["q_proj"].T), self._positions())
        attended = self._attend(queries).reshape(len(wide), -1)
        hidden = (normed if flags.norm_before_residual else features) + attended @ weights["o_proj"].T
        inner = self._rms(hidden, "post_attention_layernorm")
        gate = inner @ weights["gate_proj"].T
        gate = gate / (1 + np.exp(np.minimum(-gate, 80.0)))
        hidden = hidden + (gate * (inner @ weights["up_proj"].T)) @ weights["down_proj"].T
        self.final = self._rms(hidden, "norm")
        return self.final @ self._head.T, self.final if flags.norm_output else hidden

    def _attend(self, queries: Floats) -> Floats:
        """[R, Q, D] -> [R, Q, D]: step-0 slots up to the anchor, then the anchor's own later ones."""
        result = np.empty_like(queries)
        for number in np.unique(self.sequence):
            rows = np.flatnonzero(self.sequence == number)
            step = max(1, SCORES_AT_ONCE // (queries.shape[1] * (len(self._keys[number]) + self._step)))
            for start in range(0, len(rows), step):
                part = rows[start : start + step]
                result[part] = self._attend_rows(
                    queries[part], part, self._keys[number], self._values[number]
                )
        return result

    def _attend_rows(self, queries: Floats, rows: Integers, keys: Floats, values: Floats) -> Floats:
        groups = self._shape.kv_heads
        split = queries.reshape(len(rows), groups, -1, self._shape.head_dim)  # [R, K, Q / K, D]
        scores = np.einsum("rkgd,nkd->rkgn", split, keys, optimize=True)
        hidden = np.arange(len(keys)) > self.anchors[rows][:, None]  # [R, N]
        scores = np.where(hidden[:, None, None], -np.inf, scores)
        own = [np.einsum("rkgd,rkd->rkg", split, each[rows]) for each in self._own_keys]
        scores = np.concatenate([scores, *(each[..., None] for each in own)], axis=-1)
        scores *= self._shape.head_dim**-0.5
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        mixed = np.einsum("rkgn,nkd->rkgd", weights[..., : len(keys)], values, optimize=True)
        for step, each in enumerate(self._own_values):
            mixed += weights[..., len(keys) + step, None] * each[rows][:, :, None]
        attended: Floats = mixed.reshape(queries.shape)
        return attended

    def _rotated(self, heads: Floats, positions: Integers) -> Floats:
        shape = self._reading.shape
        return rotation(self._reading.rope, shape.head_dim, shape.max_position, positions)(heads)

    def _heads(self, flat: Floats) -> Floats:
        heads: Floats = flat.reshape(len(flat), -1, self._reading.shape.head_dim)
        return heads

    def _rms(self, hidden: Floats, name: str) -> Floats:
        scale = np.sqrt(np.mean(hidden * hidden, axis=-1, keepdims=True) + self._reading.shape.rms_norm_eps)
        normed: Floats = hidden / scale * self._reading.weights[name]
        return normed
