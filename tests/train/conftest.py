from __future__ import annotations

from tests.target.conftest import llama, one_thread

__all__ = ["llama", "one_thread"]
