from __future__ import annotations

from tests.target.conftest import llama

__all__ = ["llama"]
