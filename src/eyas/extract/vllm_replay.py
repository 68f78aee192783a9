"""Replaying token sequences on a vLLM server that writes hidden states, each by one request for a single token.

A replay of the ids rather than the states of the generation itself: it can be repeated, and states of several generated
tokens were mixed up there (vllm-project/vllm#56417).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from eyas.errors import GateError, ServerError
from eyas.extract.vllm_file import Form, StatesFile
from eyas.serving.params import ServerParams
from eyas.target.model import TargetStates

_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 10.0
_LAST_PAUSE_S = 5.0
"""A server that lost its engine answers with errors for a while before it ends."""
_BUSY = (408, 425, 429)


@dataclass(frozen=True)
class Writer:
    """A server that writes states, as its client sees it."""

    base_url: str
    model: str
    folder: Path
    """Where it writes."""
    form: Form
    check_alive: Callable[[], None]
    """Raises ServerError once the server has ended."""


class _Lost(Exception):
    """No answer; another request may get one."""


class Replay:
    """Sends sequences and collects their states. Lives in one event loop; `close` ends its connections."""

    def __init__(self, writer: Writer, server: ServerParams, name_of: Callable[[Sequence[int]], str]) -> None:
        self._writer = writer
        self._server = server
        self._name_of = name_of
        self._free = asyncio.Semaphore(server.concurrency)
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0),  # the semaphore limits
            timeout=aiohttp.ClientTimeout(
                total=server.request_timeout_s, sock_connect=server.connect_timeout_s
            ),
            trust_env=False,
        )

    async def states(self, sequences: Sequence[Sequence[int]]) -> list[TargetStates]:
        """States of all sequences, in their order; the first that fails for good ends the others.

        Raises:
            GateError: a sequence's states are wrong or missing, whatever was asked again; names it.
            ServerError: the server is gone, or refuses a sequence.
        """
        tasks = [
            asyncio.ensure_future(self._bounded([int(token) for token in tokens])) for tokens in sequences
        ]
        try:
            return await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def close(self) -> None:
        """Close the connections."""
        await self._session.close()

    async def _bounded(self, tokens: Sequence[int]) -> TargetStates:
        async with self._free:
            return await self._insist(tokens)

    async def _insist(self, tokens: Sequence[int]) -> TargetStates:
        """Ask up to `max_attempts` times. A file that is wrong needs a fresh request: it is written only once."""
        pause = _FIRST_PAUSE_S
        for attempt in range(1, self._server.max_attempts + 1):
            try:
                return await self._ask(tokens)
            except (_Lost, GateError) as error:
                if attempt == self._server.max_attempts:
                    await self._settle(_LAST_PAUSE_S if isinstance(error, _Lost) else 0.0)
                    raise self._failure(tokens, error) from error
            await self._settle(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_S)
        raise AssertionError("max_attempts is at least 1")

    async def _settle(self, pause: float) -> None:
        """Wait a little; a server that has ended is the better explanation of whatever went wrong."""
        self._writer.check_alive()
        await asyncio.sleep(pause)
        self._writer.check_alive()

    def _failure(self, tokens: Sequence[int], error: _Lost | GateError) -> GateError | ServerError:
        name, attempts = self._name_of(tokens), self._server.max_attempts
        if isinstance(error, GateError):
            return GateError(
                f"vLLM gave no right states in {attempts} requests: {error.what}",
                where=f"{name} ({error.where})",
                hint="see the server's log (data/.journal/logs); extract.backend: transformers needs no server",
            )
        return ServerError(
            f"vLLM did not answer {attempts} requests: {error}",
            where=f"{self._writer.base_url}, {name}",
            hint="see the server's log (data/.journal/logs)",
        )

    async def _ask(self, tokens: Sequence[int]) -> TargetStates:
        reply = await self._post(tokens)
        file = self._file(reply, tokens)
        try:
            self._check_ids(reply, tokens)
            await file.written(self._writer.check_alive)
            return await asyncio.to_thread(file.read, tokens, self._writer.form)
        finally:
            file.delete()

    async def _post(self, tokens: Sequence[int]) -> Any:
        """One request.

        Raises:
            _Lost: no answer, or the server is busy or in trouble.
            ServerError: it refuses the sequence.
        """
        body = {
            "model": self._writer.model,
            "prompt": list(tokens),
            "max_tokens": 1,
            "temperature": 0.0,
            "return_token_ids": True,
        }
        try:
            async with self._session.post(f"{self._writer.base_url}/completions", json=body) as response:
                if response.status == 200:
                    return await response.json(content_type=None)
                text = (await response.text(errors="replace"))[:500]
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
            raise _Lost(f"{type(error).__name__}: {error}") from error
        if response.status >= 500 or response.status in _BUSY:
            raise _Lost(f"status {response.status}: {text}")
        raise ServerError(
            f"vLLM refuses a sequence with status {response.status}: {text}",
            where=self._name_of(tokens),
            hint="extract.backend: transformers takes any sequence that fits the target",
        )

    def _file(self, reply: Any, tokens: Sequence[int]) -> StatesFile:
        """The file that an answer names; no other folder is ever touched."""
        transfer = reply.get("kv_transfer_params") if isinstance(reply, dict) else None
        named = transfer.get("hidden_states_path") if isinstance(transfer, dict) else None
        path = Path(named) if isinstance(named, str) else None
        if path is None or path.parent != self._writer.folder:
            raise ServerError(
                f"vLLM's answer names {named or 'no file of hidden states'}, not a file in {self._writer.folder}",
                where=self._name_of(tokens),
                hint="another version of vLLM than requirements/ names? See the server's log (data/.journal/logs)",
            )
        return StatesFile(path)

    def _check_ids(self, reply: Any, tokens: Sequence[int]) -> None:
        """The prompt as the server took it must be the one that was sent: asking again would not change it."""
        choices = reply.get("choices")
        ids = choices[0].get("prompt_token_ids") if choices else None
        if ids != list(tokens):
            raise ServerError(
                "vLLM took other prompt ids than it was sent",
                where=self._name_of(tokens),
                hint="another version of vLLM than requirements/ names?",
            )
