from __future__ import annotations

import pytest


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """Nothing here computes with torch, and importing it takes longer than most of these tests."""
