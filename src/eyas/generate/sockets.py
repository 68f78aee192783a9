"""Sockets for long, silent connections, and many of them."""

from __future__ import annotations

import resource
import socket
from typing import Any

from eyas.errors import ServerError

_IDLE_S = 30
_INTERVAL_S = 10
_PROBES = 6
_OTHER_FILES = 256
"""Files that the process has open besides its connections, at most."""


def keep_alive_socket(address: tuple[Any, ...]) -> socket.socket:
    """A TCP socket that notices within a minute and a half that its peer is gone, and that gateways do not forget.

    An answer may take an hour in which no byte passes, and there is no time-out on it.
    """
    made = socket.socket(family=address[0], type=address[1], proto=address[2])
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", _IDLE_S), ("TCP_KEEPINTVL", _INTERVAL_S), ("TCP_KEEPCNT", _PROBES)):
        if (option := getattr(socket, name, None)) is not None:  # not every system has all of them
            made.setsockopt(socket.IPPROTO_TCP, option, value)
    return made


def allow_connections(count: int) -> None:
    """Raise this process's limit of open files so far that so many connections fit.

    Raises:
        ServerError: the system allows fewer.
    """
    needed = count + _OTHER_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft >= needed or soft == resource.RLIM_INFINITY:
        return
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise ServerError(
            f"{count} requests in flight need {needed} open files, the system allows {hard}",
            where="server.concurrency",
            hint=f"ulimit -n {needed} (as root), or a lower server.concurrency",
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
