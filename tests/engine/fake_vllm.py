"""A vLLM server in a thread: known answers, honest counters."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from .fake_http import FakeServer, rounds

METRICS = """\
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{{engine="0",model_name="tiny"}} {running}
# TYPE vllm:generation_tokens counter
vllm:generation_tokens_total{{engine="0",model_name="tiny"}} {tokens}
"""
SPECULATION = """\
# TYPE vllm:spec_decode_num_drafts counter
vllm:spec_decode_num_drafts_total{{engine="0",model_name="tiny"}} {drafts}
# TYPE vllm:spec_decode_num_accepted_tokens_per_pos counter
vllm:spec_decode_num_accepted_tokens_per_pos_total{{engine="0",model_name="tiny",position="0"}} {first}
vllm:spec_decode_num_accepted_tokens_per_pos_total{{engine="0",model_name="tiny",position="1"}} {second}
"""


@dataclass
class FakeVllm(FakeServer):
    speculates: bool = False
    """Drafts two tokens; how many are accepted: see `rounds`."""
    detailed: bool = True
    """Tells the accepted tokens of each draft."""
    metrics: bool = True
    token_ids: bool = True
    finishes: bool = True
    logprobs: dict[tuple[int, ...], dict[int, float]] = field(default_factory=dict)
    """Of the most likely tokens, by prompt ids."""
    counted: list[int] = field(default_factory=list)
    """Accepted tokens of all drafts."""

    def stream(self, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        ids = self.answer(body["prompt"], body["max_tokens"])
        found = rounds(len(ids)) if self.speculates else []
        with self.lock:
            self.counted += found
        pieces, place = [ids[:1]], 1
        for accepted in found or [0] * (len(ids) - 1):
            pieces.append(ids[place : place + accepted + 1])
            place += accepted + 1
        for piece in pieces:
            choice = {"index": 0, "text": "", "finish_reason": None, "logprobs": None}
            yield _chunk([choice | ({"token_ids": piece} if self.token_ids else {})])
        if self.finishes:
            yield _chunk([{"index": 0, "text": "", "finish_reason": "length", "logprobs": None}])
        yield _chunk([]) | self.usage(found)

    def usage(self, found: list[int]) -> dict[str, Any]:
        if not (self.speculates and self.detailed):
            return {"usage": {}}
        steps: dict[str, Any] = {"per_step_accepted": found} if found else {}
        return {"usage": {}, "metrics": {"speculative_decoding": {"num_spec_steps": len(found), **steps}}}

    def once(self, body: dict[str, Any]) -> dict[str, Any]:
        top = self.logprobs[tuple(body["prompt"])]
        named = {f"token_id:{token}": logprob for token, logprob in top.items()}
        return _chunk([{"index": 0, "text": "", "logprobs": {"top_logprobs": [named]}}])

    def page(self, path: str) -> str | dict[str, Any] | None:
        if path == "/v1/models":
            return {"data": [{"id": "tiny", "max_model_len": 64}]}
        if path == "/version":
            return {"version": "0.32.0"}
        return self.metrics_text() if path == "/metrics" and self.metrics else None

    def metrics_text(self) -> str:
        text = METRICS.format(running=self.running, tokens=self.tokens)
        if self.speculates:
            first, second = (sum(each >= place for each in self.counted) for place in (1, 2))
            text += SPECULATION.format(drafts=len(self.counted), first=first, second=second)
        return text


def _chunk(choices: list[dict[str, Any]]) -> dict[str, Any]:
    return {"id": "x", "object": "text_completion", "created": 0, "model": "tiny", "choices": choices}
