"""A drafter checkpoint read and run as vLLM does, in NumPy, written from the loader's rules alone.

Rules of vLLM 0.32 (model_executor/models/llama_eagle3.py) that are followed here, the silent ones included:
names holding `t2d` are dropped; `d2t` is an offset added to the draft id, zeros if absent; `lm_head` keeps its
name; `midlayer.` is layer 0; absent norms stay at ones, absent projections are whatever memory holds (NaN here);
`input_norm` is dropped unless norm_before_fc; the nested eagle_config wins for norm_before_fc; other unknown
names are an error; without `embed_tokens` the target's embedding is used.

Shapes: N slots, H hidden size, A aux layers, Vd draft vocab, V target vocab.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file

Array = NDArray[Any]


@dataclass
class Step:
    logits: Array
    """[N, V], -inf outside the draft vocabulary."""
    fed_back: Array
    """[N, H], the hidden states of the next draft step."""


class NumpyDrafter:
    def __init__(self, folder: Path, target_embedding: Array) -> None:
        self.config = json.loads((folder / "config.json").read_text())
        nested = self.config.get("eagle_config") or {}
        self.norm_before_fc = nested.get("norm_before_fc", self.config.get("norm_before_fc", False))
        self.aux_count = self.config.get("num_aux_hidden_states") or len(
            nested.get("eagle_aux_hidden_state_layer_ids") or [0, 0, 0]
        )
        self.tensors = self._allocated()
        self.embedding = target_embedding
        for name, value in load_file(folder / "model.safetensors").items():
            self._take(name, value)

    def _allocated(self) -> dict[str, Array]:
        config = self.config
        hidden, inner, head = config["hidden_size"], config["intermediate_size"], config["head_dim"]
        fused = self.aux_count * config.get("target_hidden_size", hidden)
        queries, values = config["num_attention_heads"] * head, config["num_key_value_heads"] * head

        def unset(*shape: int) -> Array:
            return np.full(shape, np.nan)

        tensors: dict[str, Array] = {
            "fc": unset(hidden, fused),
            "q": unset(queries, 2 * hidden),
            "k": unset(values, 2 * hidden),
            "v": unset(values, 2 * hidden),
            "o": unset(hidden, queries),
            "gate": unset(inner, hidden),
            "up": unset(inner, hidden),
            "down": unset(hidden, inner),
            "head": unset(config.get("draft_vocab_size") or config["vocab_size"], hidden),
            "offsets": np.zeros(config.get("draft_vocab_size") or config["vocab_size"], dtype=np.int64),
            "norm_embedding": np.ones(hidden),
            "norm_feature": np.ones(hidden),
            "norm_mlp": np.ones(hidden),
            "norm_final": np.ones(hidden),
        }
        if self.norm_before_fc:
            tensors["norm_fused"] = np.ones(fused)
        if config.get("fc_norm", False):
            for part in range(self.aux_count):
                tensors[f"norm_part_{part}"] = np.ones(fused // self.aux_count)
        return tensors

    def _take(self, name: str, value: Array) -> None:
        if "t2d" in name or (name == "input_norm.weight" and not self.norm_before_fc):
            return
        name = name.replace("midlayer.", "layers.0.")
        own = {
            "fc.weight": "fc",
            "layers.0.self_attn.q_proj.weight": "q",
            "layers.0.self_attn.k_proj.weight": "k",
            "layers.0.self_attn.v_proj.weight": "v",
            "layers.0.self_attn.o_proj.weight": "o",
            "layers.0.mlp.gate_proj.weight": "gate",
            "layers.0.mlp.up_proj.weight": "up",
            "layers.0.mlp.down_proj.weight": "down",
            "layers.0.input_layernorm.weight": "norm_embedding",
            "layers.0.hidden_norm.weight": "norm_feature",
            "layers.0.post_attention_layernorm.weight": "norm_mlp",
            "norm.weight": "norm_final",
            "lm_head.weight": "head",
            "d2t": "offsets",
            "input_norm.weight": "norm_fused",
            **{f"fc_norm.{part}.weight": f"norm_part_{part}" for part in range(self.aux_count)},
        }
        if name == "embed_tokens.weight":
            self.embedding = value.astype(np.float64)
            return
        place = own.get(name)
        if place not in self.tensors:
            raise KeyError(f"no parameter for {name}")
        assert self.tensors[place].shape == value.shape, name
        self.tensors[place] = value if place == "offsets" else value.astype(np.float64)

    def fuse(self, aux: Array) -> Array:
        """[N, A * H] -> [N, H]."""
        if self.norm_before_fc:
            aux = self._rms(aux, "norm_fused")
        if self.config.get("fc_norm", False):
            parts = np.split(aux, self.aux_count, axis=-1)
            aux = np.concatenate([self._rms(part, f"norm_part_{i}") for i, part in enumerate(parts)], axis=-1)
        return aux @ self.tensors["fc"].T

    def run(self, token_ids: Array, features: Array) -> Step:
        """One causal pass over slots 0..N-1, at positions 0..N-1: every slot sees itself and those before it."""
        count = len(token_ids)
        normed = self._rms(features, "norm_feature")
        residual = normed if self.config.get("norm_before_residual", False) else features
        wide = np.concatenate([self._rms(self.embedding[token_ids], "norm_embedding"), normed], axis=-1)
        hidden = residual + self._attend(wide, np.arange(count)) @ self.tensors["o"].T
        inner = self._rms(hidden, "norm_mlp")
        gate = inner @ self.tensors["gate"].T
        hidden = (
            hidden + (gate / (1 + np.exp(-gate)) * (inner @ self.tensors["up"].T)) @ self.tensors["down"].T
        )
        final = self._rms(hidden, "norm_final")
        logits = np.full((count, self.config["vocab_size"]), -np.inf)
        logits[:, np.arange(len(self.tensors["offsets"])) + self.tensors["offsets"]] = (
            final @ self.tensors["head"].T
        )
        return Step(logits=logits, fed_back=final if self.config.get("norm_output", False) else hidden)

    def _attend(self, wide: Array, positions: Array) -> Array:
        head = self.config["head_dim"]
        group = self.config["num_attention_heads"] // self.config["num_key_value_heads"]
        queries = self._rotate((wide @ self.tensors["q"].T).reshape(len(wide), -1, head), positions)
        keys = self._rotate((wide @ self.tensors["k"].T).reshape(len(wide), -1, head), positions)
        values = (wide @ self.tensors["v"].T).reshape(len(wide), -1, head)
        result = np.empty_like(queries)
        for index in range(queries.shape[1]):
            scores = queries[:, index] @ keys[:, index // group].T / np.sqrt(head)
            scores[np.triu_indices(len(wide), k=1)] = -np.inf
            weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
            result[:, index] = weights / weights.sum(axis=-1, keepdims=True) @ values[:, index // group]
        return result.reshape(len(wide), -1)

    def _rotate(self, heads: Array, positions: Array) -> Array:
        rope = self.config["rope_parameters"]
        assert rope["rope_type"] == "default"
        size = self.config["head_dim"]
        frequency = rope["rope_theta"] ** (-np.arange(0, size, 2) / size)
        turn = np.exp(1j * positions[:, None] * frequency)[:, None]  # [N, 1, size / 2]
        turned = (heads[..., : size // 2] + 1j * heads[..., size // 2 :]) * turn
        return np.concatenate([turned.real, turned.imag], axis=-1)

    def _rms(self, hidden: Array, name: str) -> Array:
        scale = np.sqrt((hidden**2).mean(axis=-1, keepdims=True) + self.config["rms_norm_eps"])
        normed: Array = hidden / scale * self.tensors[name]
        return normed
