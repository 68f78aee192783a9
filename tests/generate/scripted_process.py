"""A scripted server in a process of its own, so that it takes no time from the client that is tested.

python -m tests.generate.scripted_process --delay-s 0.02
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import signal
import subprocess
import sys
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from tests.generate.scripted_replies import Scripted, completion, faulty
from tests.generate.scripted_service import Seen, Service


class ServerProcess:
    """The service in a process of its own, so that it takes no time from the one that is tested."""

    def __init__(self, process: subprocess.Popen[str], port: int) -> None:
        self.process = process
        self.port = port
        self.base_url = f"http://127.0.0.1:{port}/v1"

    def seen(self) -> Seen:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/seen") as reply:
            values = json.load(reply)
        return Seen(**values | {"posts": Counter(values["posts"]), "gets": Counter(values["gets"])})


@contextlib.contextmanager
def server_process(*arguments: str) -> Iterator[ServerProcess]:
    """Start `main` with these arguments; it is killed at the end."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.generate.scripted_process", *arguments],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    assert process.stdout is not None
    try:
        yield ServerProcess(process, int(process.stdout.readline()))
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


async def main() -> None:
    """Serve until killed; prints the port."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--delay-s", type=float, default=0.0, help="time to an answer")
    parser.add_argument("--faults", type=float, default=0.0, help="share of POSTs that fail")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tokens", type=int, default=0, help="answer all alike, with so many tokens")
    arguments = parser.parse_args()
    script = faulty(arguments.seed, arguments.faults, arguments.delay_s)
    if arguments.tokens:
        message = {"content": "word " * arguments.tokens}
        usage = {"prompt_tokens": 5, "completion_tokens": arguments.tokens}
        ids = [*range(1000, 999 + arguments.tokens), 2]
        body = json.dumps(completion("", message=message, token_ids=ids, usage=usage)).encode()
        same = Scripted(body, delay_s=arguments.delay_s)
        script = lambda prompt, number: same  # noqa: E731
    service = Service(script)
    await service.listen()
    print(service.port, flush=True)
    await asyncio.get_running_loop().create_future()


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a test's Ctrl-C is for what is tested
    asyncio.run(main())
