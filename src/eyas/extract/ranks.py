"""Several processes that extract together: who computes which shard, and that all end when one does.

Each process (rank) takes the next shard that nobody has taken, so that a slow one holds up nothing but its own shard.
They agree through a key-value store that rank 0 serves (torch.distributed.TCPStore): no file locks, which shared file
systems do not always have.
"""

from __future__ import annotations

import json
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self

import torch

from eyas.errors import EyasError, Interrupted

if TYPE_CHECKING:
    from torch.distributed import Store  # type: ignore[attr-defined] # exported without saying so

POLL_S = 0.1
HEARD_S = 30.0
"""How long a rank that failed waits for rank 0 to have read why."""
END_S = 60.0
"""How long started processes may take to end before they are killed."""
FAILED, HEARD, CLAIMS = "failed", "heard", "claims"
"""Keys of the store; those of callers have a word before their name."""


class Ranks(Protocol):
    """A process among those that work together. Leaving the context ends all of them if this one failed."""

    @property
    def rank(self) -> int:
        """From 0."""

    @property
    def local_size(self) -> int:
        """Number of processes on this machine."""

    @property
    def device(self) -> torch.device:
        """Where this process computes."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def claims(self, count: int) -> Iterator[int]:
        """Numbers below `count` in ascending order, each to one rank only."""

    def first(self, name: str, action: Callable[[], None]) -> None:
        """Let rank 0 do something that all others wait for."""

    def count(self, name: str, amount: int) -> int:
        """Add to a number that all share; returns the sum so far."""

    def check(self) -> None:
        """Stop if another rank has failed."""

    def meet(self, name: str, waiting: Callable[[], None] | None = None) -> None:
        """Wait until every rank has come here; calls `waiting` again and again meanwhile."""


@dataclass
class Alone:
    """One process does everything."""

    device: torch.device
    rank: int = 0
    local_size: int = 1
    _counts: dict[str, int] = field(default_factory=dict)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nobody else is there."""

    def claims(self, count: int) -> Iterator[int]:
        """All of them."""
        return iter(range(count))

    def first(self, name: str, action: Callable[[], None]) -> None:
        """Do it."""
        action()

    def count(self, name: str, amount: int) -> int:
        """Add to a number."""
        self._counts[name] = self._counts.get(name, 0) + amount
        return self._counts[name]

    def check(self) -> None:
        """Nobody else can have failed."""

    def meet(self, name: str, waiting: Callable[[], None] | None = None) -> None:
        """Nobody else is there."""


@dataclass(frozen=True)
class Failure:
    """Why a rank ended, as the others are told."""

    what: str
    where: str
    hint: str | None
    exit_code: int
    signum: int = 0
    """Of the signal that stopped it; 0: none did."""

    @classmethod
    def of(cls, error: BaseException, rank: int) -> Failure:
        """Describe an error of a rank."""
        place = f"rank {rank} on {socket.gethostname()}"
        if isinstance(error, Interrupted):
            return cls(f"stopped: {error}", place, None, error.exit_code, error.exit_code - 128)
        if isinstance(error, EyasError):
            where = place if error.where is None else f"{error.where} ({place})"
            return cls(error.what, where, error.hint, error.exit_code)
        return cls(f"{type(error).__name__}: {error}", place, "its traceback stands above", 1)

    def error(self) -> EyasError | Interrupted:
        """What rank 0 raises for it."""
        if self.signum:
            return Interrupted(self.signum)
        return EyasError(self.what, where=self.where, hint=self.hint)


@dataclass
class Team:
    """One of several processes."""

    device: torch.device
    rank: int
    size: int
    """Number of processes."""
    local_size: int
    store: Store
    children: dict[int, subprocess.Popen[bytes]]
    """By rank, those that this process has started."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Tell the others if this one failed, and end the processes that this one has started.

        Raises:
            SystemExit: instead of an error that rank 0 has read and shows.
        """
        told = error is not None and not isinstance(error, SystemExit) and self._tell(error)
        end_children(self.children, kindly=error is None)
        if told and isinstance(error, EyasError | Interrupted):
            raise SystemExit(error.exit_code) from error

    def claims(self, count: int) -> Iterator[int]:
        """Numbers below `count` that no other rank gets."""
        while (number := self._add(CLAIMS, 1) - 1) < count:
            yield number

    def first(self, name: str, action: Callable[[], None]) -> None:
        """Let rank 0 do it while the others wait."""
        if self.rank == 0:
            action()
            self._add(f"did {name}", 1)
        self._wait(lambda: self._add(f"did {name}", 0) > 0)

    def count(self, name: str, amount: int) -> int:
        """Add to a shared number."""
        return self._add(f"count {name}", amount)

    def check(self) -> None:
        """Look whether another rank has failed.

        Raises:
            EyasError, Interrupted: on rank 0, what the other one said, or that a process it has started is dead.
            SystemExit: on other ranks; rank 0 shows the error.
        """
        try:
            failed = json.loads(self.store.get(FAILED)) if self.store.check([FAILED]) else None
            if failed and self.rank == 0:
                self.store.set(HEARD, "1")
        except RuntimeError as error:
            raise rank_0_is_gone(str(error).splitlines()[0]) from error
        if failed:
            failure = Failure(**failed)
            raise failure.error() if self.rank == 0 else SystemExit(failure.exit_code)
        for rank, child in self.children.items():
            if child.poll():
                raise EyasError(
                    f"rank {rank} ended with code {child.returncode}",
                    where=f"process {child.pid}",
                    hint="run again: finished shards are kept, and only the ones in work are repeated",
                )

    def meet(self, name: str, waiting: Callable[[], None] | None = None) -> None:
        """Wait for all."""
        self._add(f"met {name}", 1)
        self._wait(lambda: self._add(f"met {name}", 0) == self.size, waiting)

    def _add(self, key: str, amount: int) -> int:
        try:
            return int(self.store.add(key, amount))
        except RuntimeError as error:
            raise rank_0_is_gone(str(error).splitlines()[0]) from error

    def _wait(self, condition: Callable[[], bool], waiting: Callable[[], None] | None = None) -> None:
        while not condition():
            self.check()
            if waiting is not None:
                waiting()
            time.sleep(POLL_S)

    def _tell(self, error: BaseException) -> bool:
        """Say that this rank failed; whether rank 0 has read it and will show it.

        Who was stopped from outside waits for nobody: it may have been because rank 0 was killed.
        """
        try:
            self.store.compare_set(FAILED, "", json.dumps(asdict(Failure.of(error, self.rank))))
            if self.rank == 0:  # nobody needs to wait for this one any more
                self.store.set(HEARD, "1")
                return False
            if isinstance(error, Interrupted):
                return True
            deadline = time.monotonic() + HEARD_S
            while time.monotonic() < deadline:
                if self.store.check([HEARD]):
                    return True
                time.sleep(POLL_S)
        except RuntimeError:  # rank 0 is gone
            pass
        return False


def end_children(children: dict[int, subprocess.Popen[bytes]], *, kindly: bool) -> None:
    """Wait until started processes have ended; if not kindly, stop them first. What does not end is killed."""
    for child in children.values():
        if not kindly and child.poll() is None:
            child.terminate()
    deadline = time.monotonic() + END_S
    for child in children.values():
        try:
            child.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def rank_0_is_gone(why: str) -> EyasError:
    """Rank 0 serves the store; the others can't go on without it."""
    return EyasError(
        f"rank 0 is gone: {why}",
        where=socket.gethostname(),
        hint="what it said is in its own output. Run again: finished shards are kept",
    )
