"""A vLLM server in a thread: known answers, honest counters."""

from __future__ import annotations

import json
import threading
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

METRICS = """\
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{{engine="0",model_name="tiny"}} {running}
# TYPE vllm:generation_tokens counter
vllm:generation_tokens_total{{engine="0",model_name="tiny"}} {tokens}
"""
SPECULATION = """\
# TYPE vllm:spec_decode_num_drafts counter
vllm:spec_decode_num_drafts_total{{engine="0",model_name="tiny"}} {drafts}
# TYPE vllm:spec_decode_num_accepted_tokens_per_pos counter
vllm:spec_decode_num_accepted_tokens_per_pos_total{{engine="0",model_name="tiny",position="0"}} {first}
vllm:spec_decode_num_accepted_tokens_per_pos_total{{engine="0",model_name="tiny",position="1"}} {second}
"""


@dataclass
class FakeVllm:
    answers: dict[tuple[int, ...], list[int]]
    """Token ids by prompt ids."""
    speculates: bool = False
    """Each request then counts three drafts, of which two accept one token and one accepts two."""
    metrics: bool = True
    token_ids: bool = True
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

    def complete(self, body: dict[str, Any]) -> dict[str, Any]:
        with self.lock:
            self.bodies.append(body)
            self.running += 1
            self.most_running = max(self.most_running, self.running)
        time.sleep(self.delay_s)
        ids = self.answers[tuple(body["prompt"])][: body["max_tokens"]]
        with self.lock:
            self.running -= 1
            self.tokens += len(ids)
        choice = {"index": 0, "text": "", "finish_reason": "length", "logprobs": None}
        if self.token_ids:
            choice["token_ids"] = ids
        return {"id": "x", "object": "text_completion", "created": 0, "model": "tiny", "choices": [choice]}

    def metrics_text(self) -> str:
        text = METRICS.format(running=self.running, tokens=self.tokens)
        if self.speculates:
            asked = len(self.bodies)
            text += SPECULATION.format(drafts=3 * asked, first=3 * asked, second=asked)
        return text


def _handler(fake: FakeVllm) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if fake.fails:
                self.reply(500, "application/json", '{"error": {"message": "engine died"}}')
            else:
                self.reply(200, "application/json", json.dumps(fake.complete(body)))

        def do_GET(self) -> None:
            if self.path == "/v1/models":
                self.reply(
                    200, "application/json", json.dumps({"data": [{"id": "tiny", "max_model_len": 64}]})
                )
            elif self.path == "/version":
                self.reply(200, "application/json", '{"version": "0.32.0"}')
            elif self.path == "/metrics" and fake.metrics:
                self.reply(200, "text/plain", fake.metrics_text())
            else:
                self.reply(404, "text/plain", "")

        def reply(self, status: int, kind: str, text: str) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(text.encode())))
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *arguments: object) -> None:
            pass

    return Handler
