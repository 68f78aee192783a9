"""Several servers, servers that stay away, proxies."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import count

import pytest

from eyas import paths
from eyas.errors import ServerError
from eyas.generate.session import open_journal
from tests.generate.asking import in_both_modes
from tests.generate.example import generate_params, profile, write_prompts
from tests.generate.running import (
    PROMPTS,
    generate,
    journal_lines,
)
from tests.generate.scripted import Scripted, ScriptedServer, answer, completion


@pytest.fixture
def two(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[ScriptedServer]]:
    with ExitStack() as stack:
        servers = [
            stack.enter_context(
                ScriptedServer(lambda prompt, number: Scripted(completion(prompt), delay_s=0.01))
            )
            for _ in range(2)
        ]
        monkeypatch.setenv("OPENAI_BASE_URL", ",".join(server.base_url for server in servers))
        yield servers


@in_both_modes
def test_several_servers_answer_one_dataset(two: list[ScriptedServer], stream: bool) -> None:
    two[1].pages["/version"] = (200, {"version": "0.31.0"})
    write_prompts("a", PROMPTS)
    assert generate({"concurrency": 8}, stream=stream).rows == 200
    assert two[0].posts.total() + two[1].posts.total() == 200
    assert min(server.posts.total() for server in two) > 50
    by_url = {(entry["server"]["url"], entry["server"]["version"]) for entry in journal_lines()}
    assert by_url == {(two[0].base_url, "0.32.0"), (two[1].base_url, "0.31.0")}
    assert json.loads(paths.server_profile("a").read_bytes())["versions"] == ["0.31.0", "0.32.0"]


def test_servers_with_different_context_are_refused(two: list[ScriptedServer]) -> None:
    two[1].pages["/v1/models"] = (200, {"data": [{"id": "tiny", "max_model_len": 4096}]})
    write_prompts("a", PROMPTS)
    with pytest.raises(ServerError, match="different context lengths"):
        generate()
    assert two[0].posts.total() == two[1].posts.total() == 0


def test_a_server_that_stays_away_ends_the_run_and_the_next_one_goes_on(
    server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("eyas.generate.run._TICK_S", 0.05)
    write_prompts("a", PROMPTS)
    answered = count(1)

    def script(prompt: str, number: int) -> Scripted:
        if next(answered) > 120:
            server.pages["/health"] = (503, {})
            return Scripted(b"", status=500)
        return answer(prompt, number)

    server.script = script
    with pytest.raises(ServerError, match="no server has answered"):
        generate({"give_up_after_s": 0.3})
    with open_journal("a", profile(), generate_params()) as journal:
        assert len(journal) == 120
    server.script = answer
    server.pages["/health"] = (200, {})
    assert generate().rows == 200
    assert server.posts.total() <= 200 + 4


def test_case_D15_variation_the_proxy_that_applies_is_logged_without_its_password(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with ScriptedServer() as server:
        port = server.base_url.removesuffix("/v1").rpartition(":")[2]
        monkeypatch.setenv("http_proxy", f"http://user:secret@127.0.0.1:{port}")
        monkeypatch.setenv("OPENAI_BASE_URL", "http://model.example.com/v1")
        write_prompts("a", PROMPTS[:5])
        server.pages["http://model.example.com/v1/models"] = server.pages["/v1/models"]
        with caplog.at_level(logging.INFO):
            assert generate().rows == 5
    assert f"http://model.example.com/v1 is reached through the proxy 127.0.0.1:{port}" in caplog.text
    assert "secret" not in caplog.text
