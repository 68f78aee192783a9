"""A vLLM server of our own: started on 127.0.0.1, watched, and always stopped with its whole process tree.

The server runs from its own environment, so that its pins never meet ours, and is talked to over HTTP only.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx2

from eyas import paths
from eyas.errors import ServerError
from eyas.serving import supervisor
from eyas.serving.params import ServerParams

logger = logging.getLogger(__name__)

GRACE_S = 10.0
"""How long a server may take to end by itself before it is killed."""
_KILL_TIMEOUT_S = 20.0
_LOG_LINES = 25
_FOREIGN_VARIABLES = (
    "PYTHONPATH",
    "PYTHONHOME",
    "VIRTUAL_ENV",
    "VLLM_API_KEY",
    "OPENAI_API_KEY",
    "DVC_STAGE",
)
"""Variables of our environment that would change the server or that it has no business to know."""


class LocalVllm:
    """Context manager: a healthy vLLM server inside the `with` block, nothing left of it behind.

    The server ends with this process whatever ends it, SIGKILL included (see `supervisor`).
    """

    def __init__(
        self,
        model_dir: Path,
        served_name: str,
        dtype: str,
        params: ServerParams,
        log_name: str,
        speculative: Mapping[str, Any] | None = None,
        *,
        trust_remote_code: bool = False,
        arguments: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Plan a server; it starts with the block.

        Args:
            speculative: vLLM's speculative config.
            log_name: begins the name of the log file.
            arguments: further ones of a purpose; they come last, so they win over `params.extra_args`.
            environment: further variables of a purpose.
        """
        self.port = free_port()
        self.base_url = f"http://127.0.0.1:{self.port}/v1"
        stamp = time.strftime("%Y%m%d-%H%M%S")
        self.log_path = paths.logs() / f"{log_name}-{stamp}-{os.getpid()}.log"
        self._params = params
        self._command = [
            *(str(server_python()), "-m", "vllm.entrypoints.openai.api_server"),
            *("--model", str(model_dir.resolve()), "--served-model-name", served_name),
            *("--host", "127.0.0.1", "--port", str(self.port), "--dtype", dtype),
            *("--max-model-len", str(params.max_model_len), "--max-num-seqs", str(params.max_num_seqs)),
            *("--generation-config", "vllm"),  # no sampling defaults from the model's files
            *("--disable-uvicorn-access-log",),
            *(("--trust-remote-code",) if trust_remote_code else ()),
            *(("--speculative-config", json.dumps(dict(speculative))) if speculative else ()),
            *params.extra_args,
            *arguments,
        ]
        self._environment = server_environment(params) | dict(environment or {})
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """Root of the server's process tree (its supervisor)."""
        if self._process is None:
            raise ServerError("the server is not running", where=str(self.log_path))
        return self._process.pid

    def __enter__(self) -> Self:
        """Start the server and wait until it is healthy.

        Raises:
            ServerError: it ended early or was not healthy in time; carries the end of its log.
        """
        self.log_path.parent.mkdir(parents=True, exist_ok=True)
        logger.info("starting vLLM (log: %s)", self.log_path)
        started = time.monotonic()
        with self.log_path.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", supervisor.__name__, str(GRACE_S), *self._command],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self._environment,
                start_new_session=True,  # Ctrl-C is ours: requests in flight end before the server does
            )
        try:
            self._wait_until_healthy(started + self._params.start_timeout_s)
        except BaseException:
            self.stop()
            raise
        logger.info("vLLM is ready after %.0f s", time.monotonic() - started)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    def check_alive(self) -> None:
        """Notice a dead server at once, not after every request's retries.

        Raises:
            ServerError: the server has ended; carries the end of its log.
        """
        if self._process is None or self._process.poll() is not None:
            code = None if self._process is None else self._process.returncode
            raise self._error(f"the vLLM server has ended (exit code {code})")

    def stop(self) -> None:
        """End the process tree and wait until none of it is left. Does nothing the second time."""
        process, self._process = self._process, None
        if process is None:
            return
        if process.stdin is not None:
            process.stdin.close()  # the supervisor's sign to end the tree
        try:
            process.wait(GRACE_S + _KILL_TIMEOUT_S)
        except subprocess.TimeoutExpired as error:
            process.kill()
            process.wait()
            raise self._error("the vLLM server could not be killed") from error

    def _wait_until_healthy(self, deadline: float) -> None:
        with httpx2.Client(trust_env=False, timeout=5.0) as client:
            while True:
                self.check_alive()
                try:
                    if client.get(f"http://127.0.0.1:{self.port}/health").is_success:
                        return
                except httpx2.TransportError:
                    pass  # not listening yet
                if time.monotonic() > deadline:
                    raise self._error(
                        f"the vLLM server was not healthy within {self._params.start_timeout_s:g} s"
                    )
                time.sleep(0.2)

    def _error(self, what: str) -> ServerError:
        lines = self.log_path.read_text(errors="replace").splitlines()[-_LOG_LINES:]
        tail = "\n".join(f"    | {line}" for line in lines)
        return ServerError(f"{what}; the end of its log:\n{tail}", where=str(self.log_path))


def server_python() -> Path:
    """The interpreter of the server's environment; EYAS_VLLM_PYTHON overrides it.

    Raises:
        ServerError: it does not exist.
    """
    override = os.environ.get("EYAS_VLLM_PYTHON")
    python = Path(override) if override else paths.root() / ".venv-vllm" / "bin" / "python"
    if not python.exists():
        raise ServerError(
            "the server environment is missing",
            where=str(python),
            hint="run `make venv-vllm`, or set OPENAI_BASE_URL to use a server that runs already",
        )
    return python


def server_environment(params: ServerParams) -> dict[str, str]:
    """Our environment without what is foreign to the server, with: offline, silent, all sockets on loopback.

    The VLLM_CPU_* variables act on CPU builds only.
    """
    inherited = {name: value for name, value in os.environ.items() if name not in _FOREIGN_VARIABLES}
    return inherited | {
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "VLLM_HOST_IP": "127.0.0.1",
        "GLOO_SOCKET_IFNAME": "lo",
        "VLLM_HTTP_TIMEOUT_KEEP_ALIVE": "300",
        "VLLM_CPU_KVCACHE_SPACE": str(params.kv_cache_gib),
        "VLLM_CPU_NUM_OF_RESERVED_CPU": "0",
    }


def free_port() -> int:
    """A TCP port on 127.0.0.1 that nothing listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
