"""The server's connector, without vLLM around it (with it: tests/pipeline)."""

from __future__ import annotations

import ast
import fcntl
import os
import sys
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from eyas.serving.plugin import eyas_states
from eyas.serving.plugin.eyas_states import StatesConnector, locked, take_states

BLOCKS, LAYERS, BLOCK_SIZE, HIDDEN = 6, 3, 4, 2


def cache() -> torch.Tensor:
    """[blocks, layers, block size, hidden size], every element different and none zero."""
    count = BLOCKS * LAYERS * BLOCK_SIZE * HIDDEN
    return torch.arange(1.0, count + 1).reshape(BLOCKS, LAYERS, BLOCK_SIZE, HIDDEN)


def by_hand(blocks: list[int], tokens: int) -> torch.Tensor:
    """Token t lies in the (t // 4)th of the blocks, at t % 4."""
    rows = [cache()[blocks[t // BLOCK_SIZE], :, t % BLOCK_SIZE] for t in range(tokens)]
    return torch.stack(rows)


@pytest.mark.parametrize(
    ("blocks", "tokens"), [([3], 1), ([3], 4), ([4, 1], 5), ([5, 2, 3], 12), ([2, 4], 3)]
)
def test_states_are_taken_from_the_blocks_in_their_order_which_are_then_zero(
    blocks: list[int], tokens: int
) -> None:
    held = cache()
    states = take_states(held, blocks, tokens)
    assert torch.equal(states, by_hand(blocks, tokens))
    assert states.is_contiguous()
    assert not held[blocks].any()
    others = [block for block in range(BLOCKS) if block not in blocks]
    assert torch.equal(held[others], cache()[others])


def test_a_file_is_whole_before_it_has_its_name_and_the_lock_is_free_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "new" / "cmpl-1.safetensors"
    lock = locked(Path(f"{path}.lock"))
    seen: list[list[str]] = []

    class Event:
        def synchronize(self) -> None:
            with Path(f"{path}.lock").open() as file, pytest.raises(BlockingIOError):
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            seen.append([])

    def save(tensors: Any, to: Path) -> None:
        to.write_bytes(b"half")
        seen.append(sorted(entry.name for entry in path.parent.iterdir()))

    monkeypatch.setattr(eyas_states, "save_file", save)
    StatesConnector._write_tensors({"a": torch.ones(2)}, Event(), str(path), lock)
    assert seen == [[], ["cmpl-1.safetensors.lock", "cmpl-1.safetensors.part"]]
    assert sorted(entry.name for entry in path.parent.iterdir()) == [path.name, f"{path.name}.lock"]
    assert Path(f"{path}.lock").read_text() == ""
    with Path(f"{path}.lock").open() as file:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)


def test_a_failed_write_leaves_its_reason_and_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(tensors: Any, to: Path) -> None:
        to.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(eyas_states, "save_file", full)
    path = tmp_path / "cmpl-1.safetensors"
    lock = locked(Path(f"{path}.lock"))
    with pytest.raises(OSError, match="No space left"):
        StatesConnector._write_tensors({}, eyas_states.Copied(), str(path), lock)
    assert [entry.name for entry in tmp_path.iterdir()] == [f"{path.name}.lock"]
    assert Path(f"{path}.lock").read_text() == "OSError: [Errno 28] No space left on device"
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.close(lock)


def connector(**changes: Any) -> Any:
    """The worker's side of a connector, with what vLLM's class would have set up."""
    made: Any = StatesConnector.__new__(StatesConnector)
    done: dict[str, Future[None]] = {}
    made.__dict__.update(
        _kv_cache=cache(),
        _is_tp_rank_zero=True,
        _lock_fds={},
        _req_copy_events={},
        _req_futures={},
        _executor=ThreadPoolExecutor(1),
        _on_write_done=done.__setitem__,
        use_lock=True,
        done=done,
    )
    made.__dict__.update(changes)
    return made


def pending(path: Path) -> SimpleNamespace:
    return SimpleNamespace(
        req_id="r", filename=str(path), token_ids=torch.tensor([7, 8, 9, 7, 5]), block_ids=[4, 1]
    )


@pytest.mark.parametrize("locked_before", [True, False])
def test_a_finished_request_becomes_a_file(tmp_path: Path, locked_before: bool) -> None:
    path = tmp_path / "cmpl-1.safetensors"
    made = connector()
    if locked_before:
        made._lock_fds["r"] = locked(Path(f"{path}.lock"))
    made._submit_async_write(pending(path))
    made._executor.shutdown()
    found = load_file(path)
    assert torch.equal(found["hidden_states"], by_hand([4, 1], 5))
    assert found["token_ids"].tolist() == [7, 8, 9, 7, 5]
    assert made._req_copy_events["r"].query()
    assert made.done["r"].result() is None
    assert made._lock_fds == {}


def test_only_the_first_tensor_parallel_rank_writes(tmp_path: Path) -> None:
    made = connector(_is_tp_rank_zero=False)
    made._submit_async_write(pending(tmp_path / "cmpl-1.safetensors"))
    made._executor.shutdown()
    assert list(tmp_path.iterdir()) == []


def test_cached_prefixes_are_refused() -> None:
    config = SimpleNamespace(cache_config=SimpleNamespace(enable_prefix_caching=True))
    with pytest.raises(ValueError, match="cached prefixes"):
        StatesConnector(config, None, None)


def test_it_needs_nothing_of_eyas() -> None:
    """The server's environment has neither eyas nor what eyas depends on."""
    source = Path(eyas_states.__file__)
    roots = set()
    for node in ast.walk(ast.parse(source.read_text())):
        if isinstance(node, ast.Import):
            roots |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            roots.add(str(node.module).split(".")[0])
    assert roots - set(sys.stdlib_module_names) == {"torch", "safetensors", "vllm"}
    beside = {path.name for path in source.parent.iterdir()} - {"__pycache__"}
    assert beside == {"__init__.py", "eyas_states.py"}, (
        "the folder is on the server's path: it must shadow nothing"
    )
