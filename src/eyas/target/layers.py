"""Aux layer ids and their conventions.

eyas counts as Hugging Face `hidden_states` and vLLM do: id j is the residual stream that enters layer j, so 0 is the
embedding and j the output of layer j-1. Others (SGLang's explicit lists, SpecForge) name the layer whose output it
is: j-1. The same numbers mean different layers, so a list is never stored without its convention
(vllm-project/vllm#43671, sgl-project/sglang#25454).
"""

from __future__ import annotations

from collections.abc import Sequence

CONVENTION = "hf_hidden_states_index"


def canonical_layers(num_layers: int) -> list[int]:
    """{2, N//2, N-3}: the layers of the EAGLE-3 reference implementation and the engines' default.

    Raises:
        ValueError: fewer than 7 layers, where the three would not be distinct and ascending.
    """
    ids = [2, num_layers // 2, num_layers - 3]
    check_layers(ids, num_layers)
    return ids


def check_layers(ids: Sequence[int], num_layers: int) -> None:
    """Refuse ids that are not ascending, distinct and within 1..N-1.

    0 (the embedding) can't be named in the output convention, and N means the state after the final norm to
    Hugging Face but before it to vLLM.

    Raises:
        ValueError: says which id is wrong.
    """
    if not ids:
        raise ValueError("aux_layer_ids: the list is empty")
    for index in ids:
        if not 1 <= index <= num_layers - 1:
            raise ValueError(
                f"aux_layer_ids: {index} is outside 1..{num_layers - 1} (target with {num_layers} layers)"
            )
    if list(ids) != sorted(set(ids)):
        raise ValueError(f"aux_layer_ids: {list(ids)} is not ascending without repetition")


def to_output_ids(ids: Sequence[int]) -> list[int]:
    """From hidden_states indices to the output convention (id i = output of layer i)."""
    return [index - 1 for index in ids]


def from_output_ids(ids: Sequence[int]) -> list[int]:
    """From the output convention to hidden_states indices."""
    return [index + 1 for index in ids]
