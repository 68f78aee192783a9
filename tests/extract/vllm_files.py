"""Files of states as the server's connector writes them, whole or spoiled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from eyas.extract.vllm_file import Form, StatesFile

FORM = Form(layers=4, hidden_size=6, dtype=torch.float32)
Change = Callable[[dict[str, Tensor]], dict[str, Tensor]]


def states_of(tokens: Sequence[int], form: Form = FORM) -> Tensor:
    """[T, A + 1, H]: every element tells token, layer and channel."""
    token = 1000.0 * torch.tensor(tokens, dtype=torch.float64)[:, None, None]
    layer = 100.0 * torch.arange(1, form.layers + 1)[:, None]
    return (token + layer + torch.arange(form.hidden_size)).to(form.dtype)


def write_states(
    path: Path,
    tokens: Sequence[int],
    *,
    form: Form = FORM,
    change: Change | None = None,
    torn: int = 0,
    failure: str = "",
) -> StatesFile:
    """Write a file and its lock: with other tensors, without its last bytes, or only the reason of a failure."""
    tensors = {"hidden_states": states_of(tokens, form), "token_ids": torch.tensor(tokens)}
    file = StatesFile(path)
    file.lock.write_text(failure)
    if not failure:
        save_file(change(tensors) if change else tensors, path)
        if torn:
            path.write_bytes(path.read_bytes()[:-torn])
    return file
