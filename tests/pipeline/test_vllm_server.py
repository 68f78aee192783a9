"""A real vLLM server: answers with token ids, listens on loopback only, and leaves no process behind."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from eyas import paths
from eyas.generate.session import Session, open_journal
from eyas.generate.table import PromptTable
from eyas.serving.endpoint import check_model, read_metrics
from eyas.serving.vllm import LocalVllm, server_python
from eyas.target.spec import TargetProfile
from eyas.target.template import render_prompt
from tests.generate.example import GENERATE, generate_params, write_prompts
from tests.serving.example import server_params
from tests.tiny_target import profile_of, write_target

pytestmark = [pytest.mark.pipeline, pytest.mark.timeout(600)]

SERVER = server_params(start_timeout_s=400.0, concurrency=8, max_num_seqs=8)
PROMPTS = ["the user asks", "a", "why? " * 20, "the assistant answers the user", "Grüße, 你好 \U0001f600"]
OWNER = """
import sys, time
from pathlib import Path
from eyas.serving.vllm import LocalVllm
from tests.serving.example import server_params
params = server_params(start_timeout_s=400.0)
with LocalVllm(Path(sys.argv[1]), "tiny", "float32", params, "test-killed") as server:
    print(server.pid, flush=True)
    time.sleep(600)
"""


@pytest.fixture
def target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TargetProfile:
    """A scratch repository with a tiny target; the server environment stays that of the real one."""
    monkeypatch.setenv("EYAS_VLLM_PYTHON", str(server_python()))
    for name in ("DVC_ROOT", "OPENAI_BASE_URL", "OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    datasets = {name: {"source": "jsonl", "role": "train", "path": f"{name}.jsonl"} for name in ("a", "b")}
    params = {"datasets": datasets, "prompts": {}, "generate": GENERATE}
    Path("params.yaml").write_text(yaml.safe_dump(params))
    sizes: dict[str, Any] = {
        "hidden_size": 64,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 32,
    }
    write_target(paths.TARGET, intermediate_size=128, **sizes)
    return profile_of(paths.TARGET, dtype="float32")


def tree(pid: int) -> list[psutil.Process]:
    root = psutil.Process(pid)
    return [root, *root.children(recursive=True)]


def alive(processes: list[psutil.Process]) -> list[psutil.Process]:
    return [
        process for process in processes if process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    ]


def test_all_datasets_are_answered_by_one_server_with_exact_ids(target: TargetProfile) -> None:
    params = generate_params(max_tokens=12)
    write_prompts("a", PROMPTS)
    write_prompts("b", ["asked ahead"])
    table = PromptTable.read(paths.prompts("a"), "a")
    with open_journal("a", target, params) as journal:
        with Session("a", target, params, SERVER) as session:
            responses = session.answer(table, journal)
            session.answer_ahead()
        responses.publish(paths.responses("a"))
    rows = [json.loads(line) for line in paths.raw_responses("a").read_bytes().splitlines()]
    assert [row["messages"][0]["content"] for row in rows] == PROMPTS
    for row in rows:
        assert row["prompt_token_ids"] == render_prompt(paths.TARGET, row["messages"], {})
        assert 0 < len(row["token_ids"]) <= 12
        assert (row["token_ids"][-1] in target.end_of_turn_ids) == (row["finish_reason"] == "stop")
        assert row["finish_reason"] == "stop" or len(row["token_ids"]) == 12
        assert row["usage"]["prompt_tokens"] == len(row["prompt_token_ids"])
        assert row["usage"]["completion_tokens"] == len(row["token_ids"])
    with open_journal("b", target, params) as journal:
        assert len(journal) == 1
    assert len(list(paths.logs().iterdir())) == 1


def test_a_server_listens_on_loopback_only_and_ends_with_its_block(target: TargetProfile) -> None:
    with LocalVllm(paths.TARGET, "tiny", "float32", SERVER, "test") as server:
        info = check_model(server.base_url, "tiny")
        assert (info.max_model_len, info.version is not None) == (512, True)
        assert read_metrics(server.base_url)["vllm:num_requests_running"] == 0
        processes = tree(server.pid)
        assert len(processes) >= 3
        listening = {
            connection.laddr.ip
            for process in processes
            for connection in process.net_connections(kind="inet")
            if connection.status == psutil.CONN_LISTEN or connection.type == socket.SOCK_DGRAM
        }
        assert listening == {"127.0.0.1"}
    assert alive(processes) == []
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", server.port))


def test_kill_9_of_the_owner_leaves_no_process(target: TargetProfile) -> None:
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, "-c", OWNER, str(paths.TARGET)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as owner:
        assert owner.stdout is not None
        processes = tree(int(owner.stdout.readline()))
        assert any("EngineCore" in " ".join(process.cmdline()) for process in processes)
        owner.send_signal(signal.SIGKILL)
        owner.wait()
    deadline = time.monotonic() + 20
    while left := alive(processes):
        assert time.monotonic() < deadline, left
        time.sleep(0.1)
