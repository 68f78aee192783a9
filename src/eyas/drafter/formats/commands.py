"""Command lines that serve an exported folder with its engine. Free of torch."""

from __future__ import annotations

import json

from eyas.drafter.formats.serving import Serving


def command(name: str, serving: Serving, folder: str) -> str:
    """How to serve a folder (its path or hub id) of format `name` beside its target."""
    return {"vllm": _vllm, "sglang": _sglang, "speculators": _speculators}[name](serving, folder)


def _vllm(serving: Serving, folder: str) -> str:
    speculative = {"method": "eagle3", "model": folder, "num_speculative_tokens": serving.draft_tokens}
    return (
        f"vllm serve {serving.target_name} --dtype {serving.profile.dtype} \\\n"
        f"  --speculative-config '{json.dumps(speculative)}'"
    )


def _sglang(serving: Serving, folder: str) -> str:
    """A chain of draft tokens, without a tree."""
    count = serving.draft_tokens
    return (
        f"python -m sglang.launch_server --model-path {serving.target_name} --dtype {serving.profile.dtype} \\\n"
        f"  --speculative-algorithm EAGLE3 --speculative-draft-model-path {folder} \\\n"
        f"  --speculative-num-steps {count} --speculative-eagle-topk 1 --speculative-num-draft-tokens {count + 1}"
    )


def _speculators(serving: Serving, folder: str) -> str:
    """The folder names its target and the number of draft tokens itself."""
    return f"vllm serve {folder} --dtype {serving.profile.dtype}"
