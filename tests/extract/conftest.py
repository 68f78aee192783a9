from __future__ import annotations

from tests.target.conftest import folder, llama, qwen3

__all__ = ["folder", "llama", "qwen3"]
