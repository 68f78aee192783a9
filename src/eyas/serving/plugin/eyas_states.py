"""vLLM's connector for hidden states, made to work without CUDA too and to fail where it can be seen.

This file runs inside the server: its folder is the server's PYTHONPATH, so it uses what vLLM brings and nothing of eyas.
eyas imports it without vLLM, to know where it is. vLLM's own connector (vllm 0.32,
`vllm/distributed/kv_transfer/kv_connector/v1/example_hidden_states_connector.py`) copies the states of a finished
request out of the KV cache and writes `<request id>.safetensors`, with `<request id>.safetensors.lock` under an exclusive
flock until it is done. What is different here:

* Without CUDA there is no pinned memory, stream or event; the copy is then a plain one.
* The file appears under its name only when it is whole.
* A failed write leaves its reason in the lock file; vLLM only logs it.
* Copied slots of the cache are zeroed (not on CUDA), so that a row that nobody wrote is seen as such.

Letters in shape comments: K slots, T tokens, L layers asked for, H hidden size.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

try:
    from vllm.distributed.kv_transfer.kv_connector.v1.example_hidden_states_connector import (
        ExampleHiddenStatesConnector,
    )
except ModuleNotFoundError as error:
    if error.name != "vllm":  # a vLLM that lacks this connector
        raise
    ExampleHiddenStatesConnector = object


class Copied:
    """Stands for the CUDA event behind a copy: one that was complete before it was asked for."""

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        """There is nothing to wait for."""


class StatesConnector(ExampleHiddenStatesConnector):  # type: ignore[misc]  # vLLM is not installed where types are checked
    """Writes the states of each finished request into a file."""

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        if vllm_config.cache_config.enable_prefix_caching:
            raise ValueError("cached prefixes are not computed again, so they have no states to write")
        super().__init__(vllm_config, role, kv_cache_config)

    def _submit_async_write(self, pending: Any) -> None:
        """Copy a request's states out of the cache and hand them to a writer; vLLM's own way with CUDA."""
        if self._kv_cache is None or self._kv_cache.is_cuda:
            super()._submit_async_write(pending)
        elif self._is_tp_rank_zero:
            tensors = {
                "hidden_states": take_states(self._kv_cache, pending.block_ids, len(pending.token_ids)),
                "token_ids": pending.token_ids.clone(),
            }
            event = Copied()
            self._req_copy_events[pending.req_id] = event
            lock = self._lock_fds.pop(pending.req_id, None)
            if lock is None and self.use_lock:
                lock = locked(Path(f"{pending.filename}.lock"))
            future = self._executor.submit(self._write_tensors, tensors, event, pending.filename, lock)
            self._req_futures[pending.req_id] = future
            future.add_done_callback(partial(self._on_write_done, pending.req_id))

    @staticmethod
    def _write_tensors(
        tensors: dict[str, torch.Tensor], event: Any, filename: str, lock_fd: int | None
    ) -> None:
        """Write a file whole or not at all; closing the descriptor then releases the lock."""
        part = Path(f"{filename}.part")
        try:
            event.synchronize()
            part.parent.mkdir(parents=True, exist_ok=True)
            save_file(tensors, part)
            part.replace(filename)
        except BaseException as error:
            if lock_fd is not None:
                os.write(lock_fd, f"{type(error).__name__}: {error}".encode())
            with contextlib.suppress(OSError):
                part.unlink(missing_ok=True)
            raise
        finally:
            if lock_fd is not None:
                os.close(lock_fd)


def take_states(cache: torch.Tensor, block_ids: list[int], tokens: int) -> torch.Tensor:
    """Copy states [T, L, H] out of a cache [blocks, L, block size, H], and zero the blocks."""
    block_size = cache.shape[2]
    blocks = torch.tensor(block_ids, dtype=torch.long, device=cache.device)
    offsets = torch.arange(block_size, device=cache.device)
    slots = (blocks[:, None] * block_size + offsets).flatten()[:tokens]  # [K] -> [T]
    states = cache[slots // block_size, :, slots % block_size].cpu().contiguous()  # indexing copies
    cache[blocks] = 0
    return states


def locked(path: Path) -> int:
    """Make a lock file and take its exclusive lock; gives the descriptor that holds it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o644)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    return descriptor
