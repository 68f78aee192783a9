"""An SGLang server in a thread, as versions of its /generate and /server_info show themselves."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from .fake_http import FakeServer, rounds


@dataclass
class FakeSglang(FakeServer):
    speculates: bool = True
    arguments: dict[str, Any] = field(
        default_factory=lambda: {
            "speculative_algorithm": "EAGLE3",
            "speculative_num_steps": 2,
            "speculative_eagle_topk": 1,
            "speculative_num_draft_tokens": 3,
        }
    )
    incremental: bool = False
    """Chunks hold what is new, not all so far."""
    histogram_key: str | None = "spec_correct_drafts_histogram"
    """None: the oldest versions, which count verifications only."""
    info_page: str = "/server_info"
    aborts: bool = False
    lost: int = 0
    """Tokens that are counted but never sent."""

    def stream(self, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        ids = self.answer(body["input_ids"], body["sampling_params"]["max_new_tokens"])
        meta: dict[str, Any] = {"completion_tokens": len(ids) + self.lost, "finish_reason": None}
        for place in range(len(ids)):
            shown = [ids[place]] if self.incremental else ids[: place + 1]
            last = place == len(ids) - 1
            yield {"text": "", "output_ids": shown, "meta_info": meta | (self.end(ids) if last else {})}

    def end(self, ids: list[int]) -> dict[str, Any]:
        if self.aborts:
            return {"finish_reason": {"type": "abort", "message": "out of memory"}}
        found = {"finish_reason": {"type": "length", "length": len(ids)}}
        if not self.speculates:
            return found
        accepted = rounds(len(ids))
        told = [accepted.count(count) for count in range(max(accepted, default=0) + 1)]
        return (
            found
            | {"spec_verify_ct": len(accepted)}
            | ({self.histogram_key: told} if self.histogram_key else {})
        )

    def once(self, body: dict[str, Any]) -> dict[str, Any]:
        return {"meta_info": {"output_top_logprobs": [[[-0.5, 7, None], [-1.5, 8, None]]]}}

    def page(self, path: str) -> str | dict[str, Any] | None:
        if path == "/v1/models":
            return {"data": [{"id": "tiny", "max_model_len": 64}]}
        if path == self.info_page:
            nothing = {"speculative_algorithm": None}
            return {"version": "0.5.23"} | (self.arguments if self.speculates else nothing)
        return None
