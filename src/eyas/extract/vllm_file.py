"""Files of hidden states that a vLLM server writes: waited for, checked in every respect, and deleted.

Letters in shape comments: T tokens, A aux layers, H hidden size.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from eyas.errors import GateError
from eyas.target.model import TargetStates

_FIRST_PAUSE_S = 0.001
_LONGEST_PAUSE_S = 0.1


@dataclass(frozen=True)
class Form:
    """What every file of a run looks like."""

    layers: int
    """A + 1: the aux layers, and the last one behind them."""
    hidden_size: int
    dtype: torch.dtype


@dataclass(frozen=True)
class StatesFile:
    """`<request id>.safetensors` and the lock file beside it."""

    path: Path

    @property
    def lock(self) -> Path:
        """Under an exclusive flock until the file is written; then it holds the reason if that failed."""
        return self.path.with_name(f"{self.path.name}.lock")

    async def written(self, check_alive: Callable[[], None]) -> None:
        """Wait until the server has let go of the lock.

        Raises:
            GateError: there is no lock file, or the server could not write.
            ServerError: the server is gone (from `check_alive`).
        """
        try:
            descriptor = os.open(self.lock, os.O_RDONLY)
        except OSError as error:
            raise GateError(
                f"the server left no lock file: {error.strerror}", where=str(self.lock)
            ) from error
        try:
            pause = _FIRST_PAUSE_S
            while not _shared(descriptor):
                check_alive()
                await asyncio.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE_S)
            failure = os.read(descriptor, 4096).decode(errors="replace")
        finally:
            os.close(descriptor)
        if failure:
            raise GateError(f"the server could not write the states: {failure}", where=str(self.path))

    def read(self, tokens: Sequence[int], form: Form) -> TargetStates:
        """Read and check the states of a sequence: aux [T, A, H], last [T, H], views of the mapped file.

        Raises:
            GateError: the file is missing, torn, of another sequence, short, of another width or type, not finite, or
                has rows that were never written.
        """
        try:
            tensors = load_file(self.path)
            states, ids = tensors["hidden_states"], tensors["token_ids"]
        except (OSError, SafetensorError, KeyError) as error:
            raise GateError(f"the states can't be read: {error}", where=str(self.path)) from error
        if fault := _fault(states, ids, tokens, form):
            raise GateError(fault, where=str(self.path))
        return TargetStates(aux=states[:, :-1], last=states[:, -1])

    def delete(self) -> None:
        """Remove both files; mapped tensors stay readable."""
        self.path.unlink(missing_ok=True)
        self.lock.unlink(missing_ok=True)


def _shared(descriptor: int) -> bool:
    """Try to take the shared lock."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _fault(states: Tensor, ids: Tensor, tokens: Sequence[int], form: Form) -> str | None:
    """What is wrong with a file's tensors."""
    if ids.tolist() != list(tokens):
        return f"the file holds {len(ids)} other token ids than the {len(tokens)} that were sent"
    expected = (len(tokens), form.layers, form.hidden_size)
    if tuple(states.shape) != expected:
        return f"the states have the shape {list(states.shape)}, not {list(expected)}"
    if states.dtype != form.dtype:
        return f"the states are {states.dtype}, not {form.dtype}"
    low, high = torch.aminmax(states)
    if not bool(torch.isfinite(low) & torch.isfinite(high)):
        return "the states are not finite"
    unwritten = torch.nonzero(~states.any(dim=-1))
    if len(unwritten):
        token, layer = unwritten[0].tolist()
        return f"{len(unwritten)} states were never written, the first at token {token}, layer {layer} of the list"
    return None
