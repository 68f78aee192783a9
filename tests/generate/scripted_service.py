"""The scripted server: one event loop, no thread per connection, so that a thousand requests wait at once."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

from tests.generate.scripted_replies import MODEL, Script, Scripted, events


@dataclass
class Seen:
    """What a server has seen so far."""

    posts: Counter[str] = field(default_factory=Counter)
    """By the text of the last turn."""
    most_in_flight: int = 0
    in_flight: int = 0
    abandoned: int = 0
    """Connections that the client closed before their reply was sent."""
    connections: int = 0
    gets: Counter[str] = field(default_factory=Counter)


class Service:
    """The server itself; lives in one event loop."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.seen = Seen()
        self.bodies: list[dict[str, Any]] | None = None
        """Of all POSTs, if it is a list."""
        self.pages: dict[str, tuple[int, Any]] = {
            "/v1/models": (200, {"data": [{"id": MODEL, "max_model_len": 512}]}),
            "/version": (200, {"version": "0.32.0"}),
            "/health": (200, {}),
        }
        self.port = 0
        self._server: asyncio.Server | None = None
        self._connections: set[Connection] = set()

    async def listen(self) -> None:
        """On 127.0.0.1, at a free port the first time and at the same later on."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: Connection(self), "127.0.0.1", self.port, backlog=2048, reuse_address=True
        )
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Reset every connection; connecting is refused from here on."""
        assert self._server is not None
        self._server.close()
        for connection in list(self._connections):
            connection.reset()
        await asyncio.sleep(0)

    def opened(self, connection: Connection) -> None:
        self._connections.add(connection)
        self.seen.connections += 1

    def closed(self, connection: Connection) -> None:
        self._connections.discard(connection)

    def scripted(self, body: dict[str, Any]) -> Scripted:
        prompt = _prompt(body)
        seen = self.seen
        seen.posts[prompt] += 1
        seen.in_flight += 1
        seen.most_in_flight = max(seen.most_in_flight, seen.in_flight)
        if self.bodies is not None:
            self.bodies.append(body)
        return self.script(prompt, seen.posts[prompt])


class Connection(asyncio.Protocol):
    """One client connection; requests come one after another."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._buffer = b""
        self._reply: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._service.opened(self)

    def connection_lost(self, error: Exception | None) -> None:
        self._service.closed(self)
        if self._reply is not None and not self._reply.done():
            self._service.seen.abandoned += 1
            self._reply.cancel()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        head, end, rest = self._buffer.partition(b"\r\n\r\n")
        if not end:
            return
        first, *lines = head.split(b"\r\n")
        length = next((int(line[15:]) for line in lines if line[:15].lower() == b"content-length:"), 0)
        if len(rest) < length:
            return
        self._buffer = rest[length:]
        method, path, _ = first.split(b" ")
        if method == b"GET":
            self._get(path.decode())
        else:
            self._reply = asyncio.create_task(self._post(json.loads(rest[:length])))

    def reset(self) -> None:
        linger = struct.pack("ii", 1, 0)
        self._transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self._transport.abort()

    def _get(self, path: str) -> None:
        self._service.seen.gets[path] += 1
        pages = self._service.pages
        if path == "/seen":
            status, page = 200, vars(self._service.seen)
        else:
            status, page = pages.get(path, (404, {}))
        self._send(status, {}, json.dumps(page).encode())

    async def _post(self, body: dict[str, Any]) -> None:
        scripted = self._service.scripted(body)
        try:
            if scripted.hold is not None:
                await asyncio.to_thread(scripted.hold.wait, 60)
            if scripted.delay_s:
                await asyncio.sleep(scripted.delay_s)
        finally:
            self._service.seen.in_flight -= 1
        await self._answer(scripted, bool(body.get("stream")))

    async def _answer(self, scripted: Scripted, streams: bool) -> None:
        if scripted.reset:
            self.reset()
        elif scripted.chunks is not None:
            await self._stream(scripted, scripted.chunks)
        elif streams and scripted.status == 200 and isinstance(scripted.body, Mapping):
            await self._stream(scripted, events(scripted.body))
        else:
            content = (
                scripted.body if isinstance(scripted.body, bytes) else json.dumps(scripted.body).encode()
            )
            self._send(scripted.status, scripted.headers, content, scripted.cut)

    def _send(self, status: int, headers: Mapping[str, str], content: bytes, cut: int | None = None) -> None:
        kind = {"Content-Type": "application/json", "Content-Length": str(len(content))}
        self._transport.write(_head(status, kind | dict(headers)) + content[:cut])
        if cut is not None:
            self._transport.close()

    async def _stream(self, scripted: Scripted, chunks: Sequence[bytes]) -> None:
        kind = {"Content-Type": "text/event-stream; charset=utf-8"}
        framing = {"Connection": "close"} if scripted.eof else {"Transfer-Encoding": "chunked"}
        self._transport.write(_head(scripted.status, kind | framing | dict(scripted.headers)))
        left = scripted.cut
        for chunk in chunks:
            piece = chunk if left is None else chunk[:left]
            if piece:
                self._transport.write(piece if scripted.eof else b"%x\r\n%s\r\n" % (len(piece), piece))
            if left is not None:
                left -= len(piece)
            await asyncio.sleep(scripted.pause_s)
        if scripted.cut is None and not scripted.eof:
            self._transport.write(b"0\r\n\r\n")
        else:
            self._transport.close()


def _prompt(body: Mapping[str, Any]) -> str:
    messages = body.get("messages")
    return str(messages[-1].get("content")) if messages else str(body.get("input_ids"))


def _head(status: int, headers: Mapping[str, str]) -> bytes:
    lines = [f"HTTP/1.1 {status} {_phrase(status)}", *(f"{name}: {value}" for name, value in headers.items())]
    return "\r\n".join([*lines, "", ""]).encode()


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Unknown"
