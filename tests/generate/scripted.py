"""A scripted OpenAI-compatible server in threads: for faults, counting POSTs per prompt and the most in flight."""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock, Thread
from types import TracebackType
from typing import Any, Self

MODEL = "tiny"
GENERATION_PROMPT = [1, 520, 198]


@dataclass(frozen=True)
class Scripted:
    """One HTTP reply; `reset` closes the connection without any."""

    body: Any = None
    """JSON value, or bytes as they are."""
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    delay_s: float = 0.0
    reset: bool = False


Script = Callable[[str, int], Scripted]
"""(text of the last user turn, number of this POST for it, from 1) -> reply."""


def completion(prompt: str, *, message: Mapping[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    """A chat completion as vLLM 0.32 sends it. `changes` replace top-level keys, or those of the choice."""
    token_ids = [1000 + len(prompt), 7, 2]
    prompt_ids = [5, 6, *GENERATION_PROMPT]
    choice: dict[str, Any] = {
        "index": 0,
        "message": {
            "role": "assistant",
            "content": f"answer to {prompt}",
            "reasoning": None,
            **(message or {}),
        },
        "logprobs": None,
        "finish_reason": "stop",
        "stop_reason": None,
        "token_ids": token_ids,
    }
    reply: dict[str, Any] = {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "model": MODEL,
        "choices": [choice],
        "usage": {"prompt_tokens": len(prompt_ids), "total_tokens": 8, "completion_tokens": len(token_ids)},
        "prompt_token_ids": prompt_ids,
    }
    for key, value in changes.items():
        (choice if key in choice else reply)[key] = value
    return reply


def answer(prompt: str, number: int) -> Scripted:
    """The script of a server without faults."""
    return Scripted(completion(prompt))


class ScriptedServer:
    """Context manager: listens on 127.0.0.1 and answers by script."""

    def __init__(self, script: Script = answer) -> None:
        self.script = script
        self.posts: Counter[str] = Counter()
        self.bodies: list[dict[str, Any]] = []
        self.most_in_flight = 0
        self._in_flight = 0
        self._lock = Lock()
        handler = type("Handler", (_Handler,), {"owner": self})
        self._http = _Server(("127.0.0.1", 0), handler)
        self.base_url = f"http://127.0.0.1:{self._http.server_port}/v1"

    def __enter__(self) -> Self:
        Thread(target=self._http.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._http.shutdown()
        self._http.server_close()

    def reply(self, body: dict[str, Any]) -> Scripted:
        prompt = body["messages"][-1]["content"]
        with self._lock:
            self.posts[prompt] += 1
            number = self.posts[prompt]
            self.bodies.append(body)
            self._in_flight += 1
            self.most_in_flight = max(self.most_in_flight, self._in_flight)
        try:
            scripted = self.script(prompt, number)
            time.sleep(scripted.delay_s)
            return scripted
        finally:
            with self._lock:
                self._in_flight -= 1


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 1024


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    owner: ScriptedServer

    def do_GET(self) -> None:
        pages: dict[str, Any] = {
            "/v1/models": {"data": [{"id": MODEL, "max_model_len": 512}]},
            "/version": {"version": "0.32.0"},
        }
        self._send(200, json.dumps(pages[self.path]).encode(), {})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        scripted = self.owner.reply(body)
        if scripted.reset:
            linger = struct.pack("ii", 1, 0)
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            self.connection.close()
            self.close_connection = True
            return
        content = scripted.body if isinstance(scripted.body, bytes) else json.dumps(scripted.body).encode()
        self._send(scripted.status, content, scripted.headers)

    def _send(self, status: int, content: bytes, headers: Mapping[str, str]) -> None:
        with contextlib.suppress(OSError):  # the client has gone
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

    def finish(self) -> None:
        with contextlib.suppress(OSError, ValueError):  # a reset connection
            super().finish()

    def log_message(self, *arguments: object) -> None:
        pass
