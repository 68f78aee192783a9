from __future__ import annotations

import asyncio
import fcntl
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from eyas.errors import GateError, ServerError
from tests.extract.vllm_files import FORM, Change, states_of, write_states

TOKENS = [7, 3, 3, 250, 0]


def test_a_whole_file_gives_aux_and_last_and_can_be_deleted(tmp_path: Path) -> None:
    file = write_states(tmp_path / "cmpl-1.safetensors", TOKENS)
    states = file.read(TOKENS, FORM)
    file.delete()
    assert list(tmp_path.iterdir()) == []
    assert torch.equal(states.aux, states_of(TOKENS)[:, :3])
    assert torch.equal(states.last, states_of(TOKENS)[:, 3])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_states_of_16_bit(tmp_path: Path, dtype: torch.dtype) -> None:
    form = replace(FORM, dtype=dtype)
    tokens = [1, 2]
    states = write_states(tmp_path / "a.safetensors", tokens, form=form).read(tokens, form)
    assert states.aux.dtype == states.last.dtype == dtype
    assert torch.equal(states.last, states_of(tokens, form)[:, 3])


def spoil(at: Any, value: float) -> Change:
    def change(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        tensors["hidden_states"][at] = value
        return tensors

    return change


FAULTS: dict[str, tuple[Change, str]] = {
    "other ids": (
        lambda t: t | {"token_ids": torch.tensor([7, 3, 3, 250, 1])},
        "holds 5 other token ids than the 5",
    ),
    "ids and rows cut": (
        lambda t: {"hidden_states": t["hidden_states"][:4].clone(), "token_ids": t["token_ids"][:4].clone()},
        "holds 4 other token ids than the 5",
    ),
    "rows missing": (
        lambda t: t | {"hidden_states": t["hidden_states"][:4].clone()},
        r"shape \[4, 4, 6\], not \[5, 4, 6\]",
    ),
    "a row too many": (
        lambda t: t | {"hidden_states": torch.cat([t["hidden_states"], t["hidden_states"][:1]])},
        r"shape \[6, 4, 6\], not \[5, 4, 6\]",
    ),
    "a layer missing": (
        lambda t: t | {"hidden_states": t["hidden_states"][:, :3].clone()},
        r"shape \[5, 3, 6\], not \[5, 4, 6\]",
    ),
    "narrower": (
        lambda t: t | {"hidden_states": t["hidden_states"][..., :5].clone()},
        r"shape \[5, 4, 5\], not \[5, 4, 6\]",
    ),
    "other type": (
        lambda t: t | {"hidden_states": t["hidden_states"].bfloat16()},
        r"are torch\.bfloat16, not torch\.float32",
    ),
    "nan": (spoil((4, 3, 5), float("nan")), "not finite"),
    "infinite": (spoil((0, 0, 0), float("-inf")), "not finite"),
    "never written": (
        spoil((slice(3, 5), 2), 0.0),
        "2 states were never written, the first at token 3, layer 2",
    ),
    "no states": (lambda t: {"token_ids": t["token_ids"]}, "can't be read: 'hidden_states'"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_wrong_file_is_refused(tmp_path: Path, name: str) -> None:
    change, message = FAULTS[name]
    file = write_states(tmp_path / "cmpl-1.safetensors", TOKENS, change=change)
    with pytest.raises(GateError, match=message) as caught:
        file.read(TOKENS, FORM)
    assert caught.value.where == str(file.path)


def test_a_zero_channel_is_no_fault(tmp_path: Path) -> None:
    file = write_states(tmp_path / "a.safetensors", TOKENS, change=spoil((slice(None), 1, 2), 0.0))
    assert file.read(TOKENS, FORM).aux[:, 1, 2].tolist() == [0.0] * 5


@pytest.mark.parametrize("torn", [1, 200, 10**6])
def test_a_torn_file_is_refused(tmp_path: Path, torn: int) -> None:
    file = write_states(tmp_path / "a.safetensors", TOKENS, torn=torn)
    with pytest.raises(GateError, match="can't be read"):
        file.read(TOKENS, FORM)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    file = write_states(tmp_path / "a.safetensors", TOKENS)
    file.path.unlink()
    with pytest.raises(GateError, match="can't be read"):
        file.read(TOKENS, FORM)
    file.delete()
    assert list(tmp_path.iterdir()) == []


def test_the_lock_is_waited_for(tmp_path: Path) -> None:
    file = write_states(tmp_path / "a.safetensors", TOKENS)
    writer = os.open(file.lock, os.O_WRONLY)
    fcntl.flock(writer, fcntl.LOCK_EX)
    asked: list[float] = []

    async def wait() -> float:
        asyncio.get_running_loop().call_later(0.15, os.close, writer)
        started = time.monotonic()
        await file.written(lambda: asked.append(time.monotonic()))
        return time.monotonic() - started

    assert 0.14 < asyncio.run(wait()) < 2.0
    assert 3 < len(asked) < 60


def test_a_server_that_dies_while_it_writes_is_noticed(tmp_path: Path) -> None:
    file = write_states(tmp_path / "a.safetensors", TOKENS)
    writer = os.open(file.lock, os.O_WRONLY)
    fcntl.flock(writer, fcntl.LOCK_EX)

    def gone() -> None:
        raise ServerError("the vLLM server has ended")

    with pytest.raises(ServerError, match="has ended"):
        asyncio.run(file.written(gone))
    os.close(writer)


def test_the_reason_of_a_failed_write_is_told(tmp_path: Path) -> None:
    file = write_states(tmp_path / "a.safetensors", TOKENS, failure="OSError: No space left on device")
    with pytest.raises(GateError, match="could not write the states: OSError: No space left on device"):
        asyncio.run(file.written(lambda: None))


def test_no_lock_file(tmp_path: Path) -> None:
    file = write_states(tmp_path / "a.safetensors", TOKENS)
    file.lock.unlink()
    with pytest.raises(GateError, match="left no lock file"):
        asyncio.run(file.written(lambda: None))
