"""A `server` section for tests."""

from __future__ import annotations

from typing import Any

from eyas.serving.params import ServerParams

SERVER: dict[str, Any] = {
    "concurrency": 4,
    "start_timeout_s": 30.0,
    "request_timeout_s": None,
    "idle_timeout_s": None,
    "connect_timeout_s": 5.0,
    "max_attempts": 3,
    "give_up_after_s": 60.0,
    "ask_refused_again": False,
    "max_model_len": 512,
    "max_num_seqs": 4,
    "kv_cache_gib": 1,
    "extra_args": ["--enforce-eager"],
}


def server_params(**changes: Any) -> ServerParams:
    return ServerParams(**SERVER | changes)
