"""The plain checkpoint for vLLM 0.32 (model_executor/models/llama_eagle3.py).

It holds no `embed_tokens`: the engine then shares the target's, while a stale copy would be kept without a word. Layer
ids stand at the top level only, since vLLM's two runners read nested ones differently (vllm-project/vllm#50170).
"""

from __future__ import annotations

from typing import Any

from eyas.drafter.config import DrafterConfig
from eyas.drafter.formats.plain import plain_config
from eyas.drafter.formats.serving import Serving


def config_values(config: DrafterConfig, serving: Serving) -> dict[str, Any]:
    """config.json."""
    return plain_config(config, serving)
