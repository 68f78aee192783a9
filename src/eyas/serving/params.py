"""The `server` section: operational knobs on which no stage depends; changing one reruns nothing."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ServerParams:
    """How a server is started and how hard it is driven."""

    concurrency: int
    """Requests in flight, over all endpoints."""
    start_timeout_s: float
    """A started server that is not healthy after so many seconds is stopped."""
    request_timeout_s: float | None
    """Longest wait for one answer; null waits as long as the connection lives."""
    idle_timeout_s: float | None
    """Longest wait for the next piece of a streamed answer, the first included; null: no limit."""
    connect_timeout_s: float
    """Longest wait for a connection."""
    max_attempts: int
    """POSTs per request, the first included, before its row counts as failed. A server that is down or busy uses none."""
    give_up_after_s: float
    """The run ends if servers refuse everything for so long; a row fails that is refused so long while others are not."""
    ask_refused_again: bool
    """Ask rows again that a server refused for good (a prompt too long, for example): after it was started differently."""
    max_model_len: int
    """Context length of a started server, tokens; prompt + answer must fit."""
    max_num_seqs: int
    """Sequences that a started server decodes at once."""
    kv_cache_gib: int
    """KV cache of a started server on a CPU, GiB; a GPU takes its share of memory instead."""
    extra_args: list[str]
    """Further arguments of a started vLLM server."""

    def __post_init__(self) -> None:
        for key in ("concurrency", "max_attempts", "max_model_len", "max_num_seqs", "kv_cache_gib"):
            if getattr(self, key) < 1:
                raise ValueError(f"{key}: {getattr(self, key)} is below 1")
        for key in (
            "start_timeout_s",
            "connect_timeout_s",
            "request_timeout_s",
            "idle_timeout_s",
            "give_up_after_s",
        ):
            value = getattr(self, key)
            if value is not None and not value > 0:
                raise ValueError(f"{key}: {value} is not above 0")
