"""Hidden states from vLLM: those of the kernels and the quantisation that will serve the drafter.

A server of our own, on this machine's loopback, writes the states of each sequence into a file (`serving.extraction`).
"""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import torch

from eyas.errors import ServerError
from eyas.extract.vllm_file import Form
from eyas.extract.vllm_limits import check_limits, explained
from eyas.extract.vllm_loop import Loop
from eyas.extract.vllm_replay import Replay, Writer
from eyas.serving.extraction import extraction, server_versions
from eyas.serving.params import ServerParams
from eyas.serving.vllm import LocalVllm
from eyas.target.model import TargetStates
from eyas.target.spec import TargetProfile

logger = logging.getLogger("eyas.extract")

SMALLEST_CONTEXT = 64
"""Context length below which a server gains nothing."""


def describe(tokens: Sequence[int]) -> str:
    """Name a sequence by what it holds."""
    more = ", ..." if len(tokens) > 8 else ""
    return f"the sequence of {len(tokens)} tokens that begins with [{', '.join(map(str, tokens[:8]))}{more}]"


@dataclass(frozen=True)
class _Open:
    """A running server and its client."""

    loop: Loop
    replay: Replay


class VllmBackend:
    """Gives the states of token sequences; see `extract.backend.Backend`. The server starts with the first of them."""

    name = "vllm"

    def __init__(
        self,
        directory: Path,
        profile: TargetProfile,
        server: ServerParams,
        *,
        longest: int,
        folder: Path,
        name_of: Callable[[Sequence[int]], str] = describe,
    ) -> None:
        """Check the limits; nothing is started yet.

        Args:
            directory: the target.
            server: how a server is started and driven; its context length is set to what the sequences need.
            longest: tokens of the longest sequence that will be asked for.
            folder: for the server's files, ours alone while we live: it is emptied at start and removed at the end.
            name_of: gives the id of a sequence; asked for errors only.

        Raises:
            InputError: vLLM can't give this target's states, or not of so long a sequence.
        """
        check_limits(directory, profile, longest)
        self.aux_layer_ids: Sequence[int] = profile.aux_layer_ids
        self._directory = directory
        self._profile = profile
        self._server = replace(server, max_model_len=max(longest + 1, SMALLEST_CONTEXT))
        self._folder = folder
        self._name_of = name_of
        self._stack = ExitStack()
        self._open: _Open | None = None

    @cached_property
    def versions(self) -> dict[str, str]:
        """Versions of vllm and torch in the server's environment.

        Raises:
            ServerError: there is no such environment.
        """
        return server_versions()

    def states(self, sequences: Sequence[Sequence[int]]) -> list[TargetStates]:
        """Aux [T, A, H] and last [T, H], before the final norm, of each sequence, on the CPU, in the target's dtype.

        All are sent, at most `server.concurrency` at a time. The tensors are views of mapped files that are deleted
        already: their space on disk is free when they are.

        Raises:
            GateError: a sequence's states are wrong or missing.
            InputError: vLLM can't give this target's states.
            ServerError: the server did not start, died, or refuses a sequence.
        """
        if self._open is None:
            self._open = self._start()
        return self._open.loop.run(self._open.replay.states(sequences))

    def close(self) -> None:
        """Stop the server and remove its files. Does nothing the second time."""
        self._open = None
        self._stack.close()

    def _start(self) -> _Open:
        if os.environ.get("OPENAI_BASE_URL"):
            logger.info(
                "OPENAI_BASE_URL serves no hidden states, they come through files: a server is started"
            )
        self._stack.callback(shutil.rmtree, self._folder, ignore_errors=True)
        folder = _emptied(self._folder)
        server = self._serve(folder)
        loop = Loop()
        self._stack.callback(loop.close)
        form = Form(
            layers=len(self.aux_layer_ids) + 1,
            hidden_size=self._profile.hidden_size,
            dtype=getattr(torch, self._profile.dtype),
        )
        writer = Writer(server.base_url, self._profile.name, folder, form, server.check_alive)
        replay = loop.run(_made(writer, self._server, self._name_of))
        self._stack.callback(lambda: loop.run(replay.close()))
        return _Open(loop, replay)

    def _serve(self, folder: Path) -> LocalVllm:
        added = extraction([*self.aux_layer_ids, self._profile.num_layers], folder)
        server = LocalVllm(
            self._directory,
            self._profile.name,
            self._profile.dtype,
            self._server,
            "extract",
            trust_remote_code=self._profile.trust_remote_code,
            arguments=added.arguments,
            environment=added.environment,
        )
        try:
            return self._stack.enter_context(server)
        except ServerError as error:
            raise explained(error, server.log_path) from error


async def _made(writer: Writer, server: ServerParams, name_of: Callable[[Sequence[int]], str]) -> Replay:
    """A replay belongs to the loop in which it is made."""
    return Replay(writer, server, name_of)


def _emptied(folder: Path) -> Path:
    """A new folder in a folder from which the leftovers of killed runs are removed.

    A new one, because the server of a run that was killed just now may still write.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    return Path(tempfile.mkdtemp(prefix="states-", dir=folder)).resolve()
