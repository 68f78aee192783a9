"""Sockets for many long requests."""

from __future__ import annotations

import resource
import socket

import pytest

from eyas.errors import ServerError
from eyas.generate.sockets import allow_connections, keep_alive_socket


def test_a_silent_connection_is_kept_and_watched() -> None:
    with keep_alive_socket((socket.AF_INET, socket.SOCK_STREAM, 0, "", ("127.0.0.1", 1))) as made:
        assert made.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        assert made.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 30
        assert made.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL) == 10


def test_the_limit_of_open_files_is_raised_as_far_as_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = [(1024, 4096)]
    monkeypatch.setattr(resource, "getrlimit", lambda kind: limits[-1])
    monkeypatch.setattr(resource, "setrlimit", lambda kind, values: limits.append(values))
    allow_connections(128)
    assert limits == [(1024, 4096)]
    allow_connections(1024)
    assert limits[-1] == (1280, 4096)
    with pytest.raises(ServerError, match="5000 requests in flight need 5256 open files") as caught:
        allow_connections(5000)
    assert "server.concurrency" in str(caught.value)
