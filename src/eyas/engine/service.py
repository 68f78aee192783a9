"""What a server that runs already says about itself: its dialect, and how it speculates."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from eyas.engine.counters import served_draft_tokens
from eyas.errors import ServerError
from eyas.serving.endpoint import check_model, read_metrics, read_page

logger = logging.getLogger(__name__)

SGLANG_PAGES = ("server_info", "get_server_info")
"""Newer and older name."""


@dataclass(frozen=True)
class Service:
    """A server as it is."""

    base_url: str
    dialect: str
    """Key of `dialect.DIALECTS`."""
    version: str | None
    speculates: bool
    draft_tokens: int | None = None
    """Most tokens that a draft can have accepted; None without speculation."""
    chain: bool = True
    """Whether it drafts a single chain of tokens, which alone can be simulated, and not a tree."""


def inspect(base_url: str, name: str) -> Service:
    """Ask a server what it is. vLLM shows its speculation in its counters, SGLang in its arguments.

    Raises:
        ServerError: it can't be reached or serves another model.
    """
    model = check_model(base_url, name)
    for page in SGLANG_PAGES:
        arguments = read_page(base_url, page)
        if arguments is not None and "speculative_algorithm" in arguments:
            return _sglang(base_url, model.version or _text(arguments.get("version")), arguments)
    try:
        draft_tokens = served_draft_tokens(read_metrics(base_url))
    except ServerError as error:
        logger.warning("%s: whether it speculates is not known: %s", base_url, error.what)
        draft_tokens = None
    return Service(base_url, "vllm", model.version, draft_tokens is not None, draft_tokens)


def _sglang(base_url: str, version: str | None, arguments: Mapping[str, Any]) -> Service:
    """A tree of width 1 is a chain; of its draft tokens the first one is the target's own."""
    speculates = arguments.get("speculative_algorithm") is not None
    steps = arguments.get("speculative_num_steps")
    if steps is None and arguments.get("speculative_num_draft_tokens") is not None:
        steps = int(arguments["speculative_num_draft_tokens"]) - 1
    return Service(
        base_url,
        "sglang",
        version,
        speculates,
        int(steps) if speculates and steps is not None else None,
        chain=arguments.get("speculative_eagle_topk") in (None, 1),
    )


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None
