from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from aiohttp import web

from eyas.errors import EyasError, GateError, ServerError
from eyas.extract import vllm_replay
from eyas.extract.vllm_replay import Replay, Writer
from eyas.target.model import TargetStates
from tests.extract.vllm_files import FORM, states_of, write_states
from tests.serving.example import server_params

Reply = Callable[["Service", list[int], Path], Awaitable[web.Response]]


async def whole(service: Service, tokens: list[int], path: Path) -> web.Response:
    write_states(path, tokens)
    return answer(tokens, path)


def answer(tokens: list[int], path: Path) -> web.Response:
    return web.json_response(
        {
            "choices": [{"prompt_token_ids": tokens, "token_ids": [1]}],
            "kv_transfer_params": {"hidden_states_path": str(path)},
        }
    )


@dataclass
class Service:
    """A server that writes states, with replies that are planned ahead."""

    folder: Path
    plan: list[Reply] = field(default_factory=list)
    """Replies to the first requests; `whole` from then on."""
    bodies: list[dict[str, Any]] = field(default_factory=list)
    in_flight: int = 0
    most_in_flight: int = 0
    alive: bool = True

    async def complete(self, request: web.Request) -> web.Response:
        self.in_flight += 1
        self.most_in_flight = max(self.in_flight, self.most_in_flight)
        number = len(self.bodies)
        self.bodies.append(await request.json())
        try:
            reply = self.plan[number] if number < len(self.plan) else whole
            return await reply(self, self.bodies[number]["prompt"], self.folder / f"r{number}.safetensors")
        finally:
            self.in_flight -= 1

    def check_alive(self) -> None:
        if not self.alive:
            raise ServerError("the vLLM server has ended (exit code 9)")


def replay(service: Service, sequences: Sequence[Sequence[int]], **server: Any) -> list[TargetStates]:
    """Ask the service for the states of sequences."""

    async def run() -> list[TargetStates]:
        application = web.Application()
        application.router.add_post("/v1/completions", service.complete)
        runner = web.AppRunner(application, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = runner.addresses[0][1]
        writer = Writer(f"http://127.0.0.1:{port}/v1", "m", service.folder, FORM, service.check_alive)
        client = Replay(writer, server_params(**server), lambda tokens: f"sequence-{tokens[0]}")
        try:
            return await client.states(sequences)
        finally:
            await client.close()
            await runner.cleanup()

    return asyncio.run(run())


@pytest.fixture
def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Service:
    monkeypatch.setattr(vllm_replay, "_FIRST_PAUSE_S", 0.001)
    monkeypatch.setattr(vllm_replay, "_LAST_PAUSE_S", 0.1)
    return Service(tmp_path)


def test_all_sequences_in_their_order_and_nothing_is_left(service: Service) -> None:
    async def slow(service: Service, tokens: list[int], path: Path) -> web.Response:
        await asyncio.sleep(0.05)
        return await whole(service, tokens, path)

    service.plan = [slow] * 3
    sequences = [[number + 1] * length for number, length in enumerate([5, 1, 9, 2, 2, 7, 1, 3])]
    found = replay(service, sequences, concurrency=3)
    for states, tokens in zip(found, sequences, strict=True):
        assert torch.equal(states.aux, states_of(tokens)[:, :3])
        assert torch.equal(states.last, states_of(tokens)[:, 3])
    assert service.most_in_flight == 3
    assert sorted(json.dumps(body["prompt"]) for body in service.bodies) == sorted(map(json.dumps, sequences))
    for body in service.bodies:
        assert {key: value for key, value in body.items() if key != "prompt"} == {
            "model": "m", "max_tokens": 1, "temperature": 0.0, "return_token_ids": True
        }  # fmt: skip
    assert list(service.folder.iterdir()) == []


def test_ids_may_be_of_any_integer_type(service: Service) -> None:
    (states,) = replay(service, [torch.tensor([4, 5]).numpy()])  # type: ignore[list-item]
    assert torch.equal(states.last, states_of([4, 5])[:, 3])


async def torn(service: Service, tokens: list[int], path: Path) -> web.Response:
    write_states(path, tokens, torn=8)
    return answer(tokens, path)


async def unwritten(service: Service, tokens: list[int], path: Path) -> web.Response:
    write_states(path, tokens, failure="OSError: No space left on device")
    return answer(tokens, path)


async def missing(service: Service, tokens: list[int], path: Path) -> web.Response:
    return answer(tokens, path)


async def of_another(service: Service, tokens: list[int], path: Path) -> web.Response:
    write_states(path, [*tokens[:-1], 99])
    return answer(tokens, path)


async def in_trouble(service: Service, tokens: list[int], path: Path) -> web.Response:
    return web.Response(status=500, text="EngineDeadError")


async def busy(service: Service, tokens: list[int], path: Path) -> web.Response:
    return web.Response(status=429, text="later")


async def no_json(service: Service, tokens: list[int], path: Path) -> web.Response:
    return web.Response(text="<html>")


@pytest.mark.parametrize("reply", [torn, unwritten, missing, of_another, in_trouble, busy, no_json])
def test_what_went_wrong_once_is_asked_again(service: Service, reply: Reply) -> None:
    service.plan = [reply, reply]
    (states,) = replay(service, [[1, 2, 3]], max_attempts=3)
    assert torch.equal(states.last, states_of([1, 2, 3])[:, 3])
    assert len(service.bodies) == 3
    assert list(service.folder.iterdir()) == []


@pytest.mark.parametrize(
    ("reply", "kind", "message"),
    [
        (torn, GateError, "gave no right states in 3 requests: the states can't be read"),
        (
            unwritten,
            GateError,
            "in 3 requests: the server could not write the states: OSError: No space left",
        ),
        (of_another, GateError, "in 3 requests: the file holds 3 other token ids"),
        (in_trouble, ServerError, "did not answer 3 requests: status 500: EngineDeadError"),
    ],
)
def test_what_stays_wrong_stops_the_run_and_names_the_sequence(
    service: Service, reply: Reply, kind: type[EyasError], message: str
) -> None:
    service.plan = [reply] * 9
    with pytest.raises(kind, match=message) as caught:
        replay(service, [[1, 2, 3]], max_attempts=3)
    assert "sequence-1" in str(caught.value.where)
    assert len(service.bodies) == 3
    assert list(service.folder.iterdir()) == []


def test_one_failure_ends_the_other_requests(service: Service) -> None:
    async def endless(service: Service, tokens: list[int], path: Path) -> web.Response:
        await asyncio.sleep(600)
        return web.Response()

    service.plan = [endless, torn]
    with pytest.raises(GateError, match="no right states in 1 requests"):
        replay(service, [[1], [2], [3]], max_attempts=1, concurrency=2)
    assert len(service.bodies) <= 3


def test_a_dead_server_is_the_better_explanation(service: Service) -> None:
    async def dies(service: Service, tokens: list[int], path: Path) -> web.Response:
        service.alive = False
        return web.Response(status=500)

    service.plan = [dies]
    with pytest.raises(ServerError, match="has ended"):
        replay(service, [[1, 2]], max_attempts=5)
    assert len(service.bodies) == 1


def test_a_server_that_dies_after_its_errors_is_waited_for(service: Service) -> None:
    """An API server whose engine is gone answers 500 before it ends."""

    async def dies_soon(service: Service, tokens: list[int], path: Path) -> web.Response:
        asyncio.get_running_loop().call_later(0.05, setattr, service, "alive", False)
        return web.Response(status=500)

    service.plan = [dies_soon]
    with pytest.raises(ServerError, match="has ended"):
        replay(service, [[1, 2]], max_attempts=1)


def test_a_refusal_is_final(service: Service) -> None:
    async def refuses(service: Service, tokens: list[int], path: Path) -> web.Response:
        return web.Response(status=400, text="Token id 7 is out of vocabulary")

    service.plan = [refuses]
    with pytest.raises(ServerError, match="status 400: Token id 7 is out of vocabulary") as caught:
        replay(service, [[7, 2]], max_attempts=5)
    assert caught.value.where == "sequence-7"
    assert len(service.bodies) == 1


@pytest.mark.parametrize("ids", [[1, 2], [1, 2, 4], None])
def test_other_prompt_ids_are_final(service: Service, ids: list[int] | None) -> None:
    async def cut(service: Service, tokens: list[int], path: Path) -> web.Response:
        write_states(path, tokens)
        body = json.loads(answer(tokens, path).body)  # type: ignore[arg-type]
        body["choices"][0]["prompt_token_ids"] = ids
        return web.json_response(body)

    service.plan = [cut]
    with pytest.raises(ServerError, match="other prompt ids than it was sent"):
        replay(service, [[1, 2, 3]], max_attempts=5)
    assert len(service.bodies) == 1
    assert list(service.folder.iterdir()) == []


@pytest.mark.parametrize("transfer", [None, {}, {"hidden_states_path": None}, "elsewhere", "above"])
def test_a_file_elsewhere_is_never_touched(service: Service, tmp_path: Path, transfer: Any) -> None:
    """Not even by `..` inside the folder."""
    outside = tmp_path / "outside" / "a.safetensors"
    outside.parent.mkdir()
    write_states(outside, [1])
    service.folder = tmp_path / "inside"
    service.folder.mkdir()
    named = {"elsewhere": str(outside), "above": str(service.folder / ".." / "outside" / "a.safetensors")}
    if isinstance(transfer, str):
        transfer = {"hidden_states_path": named[transfer]}

    async def strange(service: Service, tokens: list[int], path: Path) -> web.Response:
        body = {"choices": [{"prompt_token_ids": tokens}], "kv_transfer_params": transfer}
        return web.json_response(body)

    service.plan = [strange]
    with pytest.raises(ServerError, match="not a file in"):
        replay(service, [[1]], max_attempts=5)
    assert len(list(outside.parent.iterdir())) == 2
    assert len(service.bodies) == 1
