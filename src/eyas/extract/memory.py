"""Running out of memory, said in the user's terms, and found before hours of work."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from eyas.errors import GateError

_SAYS_SO = re.compile(r"out of memory|(not enough|can't allocate|cannot allocate) memory", re.IGNORECASE)
"""What torch's allocators say that raise a plain RuntimeError: CPU, MPS, CUDA outside its own allocator."""


@contextmanager
def told_when_out_of_memory(sequence_ids: Sequence[str], lengths: Sequence[int]) -> Iterator[None]:
    """Turn running out of memory with a batch into an error that says what to lower.

    Raises:
        GateError: names the longest sequence of the batch.
    """
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        longest = max(range(len(lengths)), key=lengths.__getitem__)
        raise GateError(
            f"there is not enough memory to compute {len(lengths)} sequences of {sum(lengths)} tokens together, the longest "
            f"of {lengths[longest]}: {str(error).splitlines()[0] if str(error) else type(error).__name__}",
            where=sequence_ids[longest],
            hint=_hint(len(lengths), max(lengths)),
        ) from error


@contextmanager
def told_when_too_large(device: str, what: str = "the target") -> Iterator[None]:
    """Turn running out of memory with weights alone, those of the target or of `what`, into an error that says what to do.

    Raises:
        GateError: names the device.
    """
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        raise GateError(
            f"{what} does not fit on {device}",
            where="models/target",
            hint="compute.device_map: auto spreads it over several GPUs; extract.backend: vllm runs it as it is served; "
            "a smaller target.dtype takes less",
        ) from error


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error means that memory ran out, on a GPU or not."""
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or (
        isinstance(error, RuntimeError) and _SAYS_SO.search(str(error)) is not None
    )


def _hint(count: int, longest: int) -> str:
    spread = "compute.device_map: auto spreads the target over several GPUs"
    if count > 1:
        return f"lower extract.batch_tokens (one sequence alone has up to {longest} tokens); {spread}"
    return f"lower reassemble.max_length below {longest}; extract.batch_tokens can't help a single sequence. {spread}"
