"""Addresses and health checks."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from eyas.generate.transport import Transport, endpoint_url
from tests.generate.asking import endpoint
from tests.generate.scripted import ScriptedServer
from tests.serving.example import server_params


@pytest.mark.parametrize(
    ("base_url", "path", "url"),
    [
        ("http://h:1/v1", "/v1/chat/completions", "http://h:1/v1/chat/completions"),
        ("http://h:1/v1", "/generate", "http://h:1/generate"),
        ("https://h/api/v1", "/v1/chat/completions", "https://h/api/v1/chat/completions"),
        ("https://h/v1beta/openai", "/v1/chat/completions", "https://h/v1beta/openai/chat/completions"),
    ],
)
def test_where_a_dialect_is_asked(base_url: str, path: str, url: str) -> None:
    assert endpoint_url(base_url, path) == url


@pytest.mark.parametrize(
    ("pages", "healthy"),
    [
        ({"/health": (200, {})}, True),
        ({"/health": (503, {})}, False),
        ({"/health": (500, {}), "/v1/models": (200, {})}, False),
        ({"/v1/models": (200, {})}, True),
        ({"/v1/models": (502, {})}, False),
        ({"/v1/models": (401, {})}, True),  # it lives, and wants a key
        ({}, True),  # it answers, with neither page
    ],
)
def test_what_counts_as_healthy(pages: dict[str, tuple[int, Any]], healthy: bool) -> None:
    with ScriptedServer() as server:
        server.pages.clear()
        server.pages.update(pages)
        assert check(server.base_url) is healthy


def test_nobody_there_is_not_healthy() -> None:
    with ScriptedServer() as server:
        url = server.base_url
    assert not check(url)


def check(url: str) -> bool:
    async def ask() -> bool:
        async with Transport(server_params()) as transport:
            return await transport.is_healthy(endpoint(url))

    return asyncio.run(ask())
