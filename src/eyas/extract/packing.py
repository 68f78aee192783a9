"""Attention of packed sequences: each attends to itself alone, without padding and without a mask of the whole row.

Only attention looks across tokens, so it alone has to know where a sequence begins; all other layers of a packed row
work on real tokens only. A sequence from its first token on needs no mask at all.

Letters in shape comments: T packed tokens, N query heads, K key heads, D head size, Q queries and S keys of one piece.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from eyas.errors import InputError
from eyas.extract.prefixes import Packing, Piece

NAME = "eyas_packed"
"""In transformers' table of attention functions."""
LAYER_TYPES = {"full_attention", "sliding_attention"}
ROPE_OF_BATCH = "longrope"
"""A rotary embedding that depends on the longest sequence of a batch."""
ROPE_OF_HISTORY = "dynamic"
"""One that depends on the longest sequence computed up to now."""
WITHOUT_EFFECT = {"dropout", "position_ids", "use_cache", "cache_position", "output_attentions"}
"""What models hand to attention that changes nothing here; anything else (soft caps, sinks, biases) is refused."""
QUERY_BLOCK = 1024
"""Queries of a piece whose mask is held at a time."""
KEPT_SIZE = 2048
"""Tokens up to which masks are cut from one that is kept: 16 MiB in float32."""


def why_unpackable(decoder: Any) -> str | None:
    """What in its configuration forbids a decoder to take packed sequences; None if nothing does."""
    if not getattr(decoder, "_supports_attention_backend", False):
        return f"{type(decoder).__name__} does not let its attention be replaced"
    others = set(getattr(decoder.config, "layer_types", None) or ()) - LAYER_TYPES
    if others:
        return f"it has layers of type {', '.join(sorted(others))}"
    return None


def depends_on_batch(decoder: Any) -> bool:
    """Whether the states of a sequence depend on the length of the others in its batch."""
    return ROPE_OF_BATCH in _rope_types(decoder)


def check_rotation(decoder: Any) -> None:
    """Refuse a decoder whose states depend on what it computed before.

    Raises:
        InputError: its rotary embedding is scaled anew whenever a longer sequence comes.
    """
    if ROPE_OF_HISTORY in _rope_types(decoder):
        raise InputError(
            "the target's rotary embedding is of type dynamic: its states depend on the sequences computed before",
            where=type(decoder).__name__,
            hint="use extract.backend vllm, which computes what the server computes",
        )


def _rope_types(decoder: Any) -> set[str]:
    """Of all layers, or of each type of layer."""
    rope = getattr(decoder.config, "rope_parameters", None) or {}
    kinds = [rope, *(value for value in rope.values() if isinstance(value, dict))]
    return {str(kind.get("rope_type")) for kind in kinds}


@contextmanager
def packed_attention(decoder: Any) -> Iterator[None]:
    """Inside, the decoder's attention is `attend`; it must be called with `packing=`."""
    from transformers import AttentionInterface

    AttentionInterface.register(NAME, attend)
    config = decoder.config
    own = config._attn_implementation  # noqa: SLF001 - layers look it up there at each call
    config._attn_implementation = NAME  # noqa: SLF001
    try:
        yield
    finally:
        config._attn_implementation = own  # noqa: SLF001


def attend(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    packing: Packing | None = None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """The attention function that transformers calls in each layer.

    Args:
        module: the attention layer.
        query: [1, N, T, D].
        key: [1, K, T, D].
        value: [1, K, T, D].
        attention_mask: None; transformers makes no masks for functions that it does not know.
        packing: where the sequences lie.
        scaling: of the scores.
        sliding_window: tokens that a token sees, itself included; None: all before it.
        others: what else the model asks for.

    Returns:
        [1, T, N, D], and no weights.

    Raises:
        InputError: the model asks for more than causal attention.
    """
    asked = sorted(name for name, value in others.items() if value is not None and name not in WITHOUT_EFFECT)
    if sliding_window is None and _masks_more(module):
        asked.append("a window that it keeps in its mask")
    if packing is None or attention_mask is not None or asked or not getattr(module, "is_causal", True):
        raise InputError(
            f"the attention of {type(module).__name__} is more than causal: {', '.join(asked) or 'masks'}"
        )
    out = query.new_empty(1, query.shape[2], query.shape[1], value.shape[3])
    for piece in packing.pieces:
        rows = slice(piece.rows.start, piece.rows.stop)
        keys, values = _seen(key, piece), _seen(value, piece)
        whole = not piece.before and (sliding_window is None or len(piece.rows) <= sliding_window)
        size = len(piece.rows) if whole else QUERY_BLOCK  # no mask, no need to cut
        for start in range(0, len(piece.rows), size):
            block = query[:, :, rows][:, :, start : start + size]
            end = piece.shared + start + block.shape[2]
            found = _causal(block, keys[:, :, :end], values[:, :, :end], scaling, sliding_window)
            out[:, rows][:, start : start + size] = found.transpose(1, 2)
    return out, None


def _masks_more(module: Any) -> bool:
    """Whether a layer sees less than all tokens before it.

    Some models (Qwen2-MoE, Phi-MoE) say so in the mask alone, which transformers does not make for our function.
    """
    config, layer = getattr(module, "config", None), getattr(module, "layer_idx", None)
    kinds = getattr(config, "layer_types", None)
    if kinds and layer is not None:
        return str(kinds[layer]) != "full_attention"
    return bool(getattr(config, "sliding_window", None)) and bool(getattr(config, "use_sliding_window", True))


def _seen(states: Tensor, piece: Piece) -> Tensor:
    """Keys or values [1, K, S, D] of a piece and all before it; a view where they lie side by side."""
    parts = [*piece.before, piece.rows]
    if all(left.stop == right.start for left, right in pairwise(parts)):
        return states[:, :, parts[0].start : parts[-1].stop]
    return torch.cat([states[:, :, part.start : part.stop] for part in parts], dim=2)


def _causal(query: Tensor, key: Tensor, value: Tensor, scaling: float | None, window: int | None) -> Tensor:
    """Attention [1, N, Q, D] of queries that are the last Q of S tokens."""
    queries, keys = query.shape[2], key.shape[2]
    mask = None
    if queries != keys or (window is not None and keys > window):
        mask = _mask(query, keys, window)
    if mask is not None and query.device.type != "cpu":  # there a mask and grouped heads need a slow kernel
        groups = query.shape[1] // key.shape[1]
        key, value = key.repeat_interleave(groups, dim=1), value.repeat_interleave(groups, dim=1)
    return functional.scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=mask,
        is_causal=mask is None,
        scale=scaling,
        enable_gqa=query.shape[1] != key.shape[1],
    )


def _mask(query: Tensor, keys: int, window: int | None) -> Tensor:
    """[Q, S] which of S keys the last Q tokens see.

    On a CPU every layer needs the same ones again, and of the type that is added to the scores: 7 % of a forward pass.
    """
    queries = query.shape[2]
    if query.device.type == "cpu" and keys <= KEPT_SIZE:
        return _kept_mask(KEPT_SIZE, window, query.dtype)[keys - queries : keys, :keys]
    return _seen_keys(queries, keys, window, query.device)


@lru_cache(maxsize=2)
def _kept_mask(size: int, window: int | None, dtype: torch.dtype) -> Tensor:
    """[size, size] what is added to the scores: row i is for the token at position i."""
    hidden = ~_seen_keys(size, size, window, torch.device("cpu"))
    return torch.zeros(size, size, dtype=dtype).masked_fill_(hidden, -torch.inf)


def _seen_keys(queries: int, keys: int, window: int | None, device: torch.device) -> Tensor:
    """Bool [queries, keys] of the last of some tokens."""
    seen = torch.ones(queries, keys, dtype=torch.bool, device=device).tril(keys - queries)
    return seen if window is None else seen.triu(keys - queries - window + 1)
