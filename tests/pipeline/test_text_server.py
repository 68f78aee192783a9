"""A real server of texts: `transformers serve`, which knows no token ids, no reasoning parser and no model list."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.metadata import distribution
from pathlib import Path

import httpx2
import psutil
import pytest

from eyas.answers import SERVER_PARSER_MISSING
from eyas.errors import GateError
from eyas.serving import supervisor
from eyas.serving.vllm import free_port, server_python
from tests.pipeline.think_model import think_model
from tests.pipeline.think_project import NAME, answer, create, server_profile, user

pytestmark = [pytest.mark.pipeline, pytest.mark.timeout(600)]

PROMPTS = ["What is 4 plus 9?", "Which day follows Monday?", "Write the word garden."]
MAX_TOKENS = 15
"""More than the last two answers have, and less than the first."""
START_TIMEOUT_S = 120.0
MEMORY_GIB = 3.0
"""Without a cap on the cache's blocks the server takes 21 GiB for this model."""


@pytest.fixture(scope="module")
def model(request: pytest.FixtureRequest) -> Path:
    return think_model(request.config.cache)


@pytest.fixture(scope="module")
def base_url(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The server names its model as it was given, so it starts beside a folder of the target's name."""
    folder = tmp_path_factory.mktemp("text")
    (folder / NAME).symlink_to(model)
    port = free_port()
    command = [
        *(str(server_python().parent / "transformers"), "serve", NAME),
        *("--host", "127.0.0.1", "--port", str(port), "--device", "cpu", "--dtype", "float32"),
        *("--continuous-batching", "--attn-implementation", "sdpa", "--cb-num-blocks", "64"),
    ]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", supervisor.__name__, "5", *command],
            cwd=folder, stdin=subprocess.PIPE, stdout=log, stderr=log, env=environment(folder),
        )  # fmt: skip
    try:
        wait_until_healthy(process, port, folder / "log")
        yield f"http://127.0.0.1:{port}/v1"
        tree = psutil.Process(process.pid).children(recursive=True)
        assert sum(child.memory_info().rss for child in tree) < MEMORY_GIB * 2**30
    finally:
        assert process.stdin is not None
        process.stdin.close()  # the supervisor's sign to end the tree
        process.wait(60)


def environment(folder: Path) -> dict[str, str]:
    """Offline, with our own accelerate: transformers can't place a model without it, and vLLM's environment has none."""
    lent = folder / "lent"
    lent.mkdir()
    for file in distribution("accelerate").files or []:
        if file.name == "METADATA" or str(file) == "accelerate/__init__.py":
            folder_of_file = Path(str(file.locate())).parent
            (lent / folder_of_file.name).symlink_to(folder_of_file)
    return os.environ | {"PYTHONPATH": str(lent), "HF_HUB_OFFLINE": "1", "DO_NOT_TRACK": "1"}


def wait_until_healthy(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    with httpx2.Client(trust_env=False, timeout=5.0) as client:
        while True:
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            try:
                if client.get(f"http://127.0.0.1:{port}/health").is_success:
                    return
            except httpx2.TransportError:
                time.sleep(0.2)


def test_a_server_that_can_not_divide_off_thinking_stops_the_run(
    base_url: str, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(create(tmp_path / "project", model, [[user("Which day follows Monday?")]]))
    with pytest.raises(GateError, match="the server has no reasoning parser: 1 of 1"):
        answer(base_url, dialect="openai", max_tokens=MAX_TOKENS)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_texts_are_stored_without_ids_and_with_flags(
    base_url: str, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    monkeypatch.chdir(create(tmp_path / "project", model, [[user(prompt)] for prompt in PROMPTS]))
    params = {"dialect": "openai", "max_tokens": MAX_TOKENS, "accept_unparsed_reasoning": True}
    rows = answer(base_url, stream=stream, **params)
    assert [row["messages"][0]["content"] for row in rows] == PROMPTS
    for row in rows:
        assert row["prompt_token_ids"] is None
        assert row["token_ids"] is None
        assert row["flags"] == [SERVER_PARSER_MISSING]
        assert row["reasoning"].startswith("\n")
        assert "<think>" not in row["reasoning"] + (row["content"] or "")
    tokens = [row["usage"]["completion_tokens"] for row in rows]
    assert [row["finish_reason"] for row in rows] == ["length", "stop", "stop"]
    assert tokens == [MAX_TOKENS, 14, 14]
    assert (rows[1]["reasoning"], rows[1]["content"]) == ("\nAfter Monday comes Tuesday.\n", "\n\nTuesday.")
    servers = server_profile()
    assert servers["dialect"] == "openai"
    assert (servers["rows"], servers["rows_with_token_ids"]) == (3, 0)
    assert servers["rows_streamed"] == (3 if stream else 0)
    assert servers["rows_by_flag"] == {SERVER_PARSER_MISSING: 3}
    assert servers["rows_by_reasoning_field"] == {"content": 3}
    assert servers["rows_by_prompt_end"] == {"unknown": 3}
    assert (servers["versions"], servers["max_model_lens"]) == ([None], [None])
