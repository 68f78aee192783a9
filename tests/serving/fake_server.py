"""Stands in for the interpreter of the server environment: takes vLLM's arguments, behaves as FAKE_SERVER says."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from http.server import BaseHTTPRequestHandler, HTTPServer

STUBBORN = (
    "import os, signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); os.setsid(); time.sleep(600)"
)


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = json.dumps({"arguments": sys.argv[1:], "environment": dict(os.environ)}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments: object) -> None:
        pass


def main() -> None:
    behaviour = os.environ.get("FAKE_SERVER", "healthy")
    print(f"starting as {behaviour}", flush=True)
    if behaviour == "broken":
        print("RuntimeError: no such model", flush=True)
        sys.exit(3)
    # A child in a session of its own that ignores SIGTERM, as a stuck engine process does.
    child = subprocess.Popen([sys.executable, "-c", STUBBORN])
    print(f"child {child.pid}", flush=True)
    if behaviour == "hanging":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(600)
    port = int(sys.argv[sys.argv.index("--port") + 1])
    server = HTTPServer(("127.0.0.1", port), Handler)
    if behaviour == "short-lived":
        server.handle_request()
        os._exit(9)
    server.serve_forever()


if __name__ == "__main__":
    main()
