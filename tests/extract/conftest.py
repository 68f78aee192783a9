from __future__ import annotations

from tests.target.conftest import folder, llama, one_thread, qwen3

__all__ = ["folder", "llama", "one_thread", "qwen3"]
