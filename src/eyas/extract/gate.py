"""Checks that any states must pass, whatever they are of.

Letters in shape comments: T tokens, H hidden size, A aux layers.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from eyas.errors import GateError
from eyas.target.model import TargetStates


@torch.inference_mode()
def check_states(sequence_id: str, tokens: Sequence[int], states: TargetStates) -> Tensor:
    """States must be finite, one row per token, nowhere zero, and not the same at different tokens.

    Reads the states once, row by row: the largest absolute value of each row tells all of it.

    Returns:
        float32 [A + 1] on the CPU: largest absolute value of each aux layer and of the last state.

    Raises:
        GateError: names the sequence and the state.
    """
    for rows in (len(states.aux), len(states.last)):
        if rows != len(tokens):
            raise GateError(f"{rows} rows of states for {len(tokens)} tokens", where=sequence_id)
    peaks = torch.cat([_peaks(states.aux), _peaks(states.last)[:, None]], dim=1)  # [T, A + 1]
    extremes = torch.stack([peaks.amax(dim=0), peaks.amin(dim=0)]).float().cpu()  # [2, A + 1]
    largest: Tensor = extremes[0]
    smallest: Tensor = extremes[1]
    for column, name in enumerate(_names(states.aux.shape[1])):
        if not bool(torch.isfinite(largest[column])):
            raise GateError(
                f"the {name} is not finite",
                where=sequence_id,
                hint="float16 overflows in many models: set target.dtype to bfloat16 or float32",
            )
        if smallest[column] == 0:
            zero = torch.nonzero(peaks[:, column] == 0).flatten().tolist()
            where = (
                f"{len(zero)} tokens, the first is {zero[0]}" if len(zero) < len(tokens) else "every token"
            )
            raise GateError(f"the {name} is zero at {where}", where=sequence_id)
        if smallest[column] == largest[column] and len(set(tokens)) > 1:
            values = states.last if column == states.aux.shape[1] else states.aux[:, column]
            if bool((values == values[:1]).all()):
                raise GateError(f"the {name} is the same at every token", where=sequence_id)
    return largest


def _peaks(values: Tensor) -> Tensor:
    """[T, ..., H] -> [T, ...] largest absolute values; NaN where there is one."""
    peaks: Tensor = torch.linalg.vector_norm(values, ord=torch.inf, dim=-1)
    return peaks


def _names(aux_layers: int) -> list[str]:
    return [*(f"aux state {column}" for column in range(aux_layers)), "last state"]
