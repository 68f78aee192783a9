"""A server in a thread that answers with JSON or with a stream of server-sent events."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self


@dataclass
class FakeServer:
    """Known answers. `stream`, `once` and `page` make the engine of it."""

    answers: dict[tuple[int, ...], list[int]]
    """Token ids by prompt ids."""
    fails: bool = False
    delay_s: float = 0.0
    bodies: list[dict[str, Any]] = field(default_factory=list)
    most_running: int = 0
    running: int = 0
    tokens: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def __enter__(self) -> Self:
        self.http = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self.thread = threading.Thread(target=self.http.serve_forever, kwargs={"poll_interval": 0.01})
        self.thread.start()
        self.base_url = f"http://127.0.0.1:{self.http.server_port}/v1"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.http.shutdown()
        self.thread.join()
        self.http.server_close()

    def check_alive(self) -> None:
        pass

    def stream(self, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Chunks of a streamed answer."""
        raise NotImplementedError

    def once(self, body: dict[str, Any]) -> dict[str, Any]:
        """An answer that is not streamed."""
        raise NotImplementedError

    def page(self, path: str) -> str | dict[str, Any] | None:
        """What a GET shows; None: 404."""
        raise NotImplementedError

    def answer(self, prompt: list[int], limit: int) -> list[int]:
        with self.lock:
            self.running += 1
            self.most_running = max(self.most_running, self.running)
        time.sleep(self.delay_s)
        ids = self.answers[tuple(prompt)][:limit]
        with self.lock:
            self.running -= 1
            self.tokens += len(ids)
        return ids


def rounds(count: int, draft_tokens: int = 2) -> list[int]:
    """Accepted tokens of each draft of an answer of so many tokens, counted before the answer is cut: 1, 0, 2, 1, ..."""
    found: list[int] = []
    known = 1
    while known < count:
        found.append((1, 0, draft_tokens)[len(found) % 3])
        known += found[-1] + 1
    return found


def _handler(fake: FakeServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            with fake.lock:
                fake.bodies.append(body | {"path": self.path})
            if fake.fails:
                self.reply(500, "application/json", '{"error": {"message": "engine died"}}')
            elif body.get("stream"):
                events = [f"data: {json.dumps(chunk)}\n\n" for chunk in fake.stream(body)]
                self.reply(200, "text/event-stream", "".join([*events, "data: [DONE]\n\n"]))
            else:
                self.reply(200, "application/json", json.dumps(fake.once(body)))

        def do_GET(self) -> None:
            found = fake.page(self.path)
            if found is None:
                self.reply(404, "text/plain", "")
            elif isinstance(found, str):
                self.reply(200, "text/plain", found)
            else:
                self.reply(200, "application/json", json.dumps(found))

        def reply(self, status: int, kind: str, text: str) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(text.encode())))
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *arguments: object) -> None:
            pass

    return Handler
