"""What the servers that answered had in common: server_profile.json, which later stages obey.

Made from the answers that are published and nothing else, so that a rerun makes equal bytes: no times, no addresses.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from eyas.generate.params import GenerateParams
from eyas.target.spec import TargetProfile, ThinkFormat
from eyas.target.think import opens_thinking


class ServerProfile:
    """Counts the entries of the journal that are published."""

    def __init__(self, params: GenerateParams, profile: TargetProfile) -> None:
        self._params = params
        self._profile = profile
        self._rows: Counter[str] = Counter()
        self._seen: dict[str, set[Any]] = {"versions": set(), "max_model_lens": set()}
        self._by: dict[str, Counter[str]] = {
            name: Counter()
            for name in ("reasoning_field", "flag", "finish_reason", "usage_key", "prompt_end")
        }

    def add(self, entry: Mapping[str, Any]) -> None:
        """Count one entry that has an answer."""
        answer, server = entry["answer"], entry["server"]
        self._seen["versions"].add(server.get("version"))
        self._seen["max_model_lens"].add(server.get("max_model_len"))
        self._rows.update(
            {
                "rows": 1,
                "rows_streamed": int(answer["streamed"]),
                "rows_with_token_ids": int(answer["token_ids"] is not None),
                "rows_with_reasoning": int(answer["reasoning"] is not None),
                "rows_with_tool_calls": int(answer["tool_calls"] is not None),
            }
        )
        if answer["reasoning_field"] is not None:
            self._by["reasoning_field"][answer["reasoning_field"]] += 1
        self._by["flag"].update(answer["flags"])
        self._by["finish_reason"][answer["finish_reason"]] += 1
        self._by["usage_key"].update(key for key, count in answer["usage"].items() if count is not None)
        self._by["prompt_end"][_prompt_end(answer["prompt_token_ids"], self._profile.think)] += 1

    def to_json(self) -> dict[str, Any]:
        """`rows_by_usage_key`: in how many rows each count was not null. `rows_by_prompt_end`: whether the prompt ended
        with the opening think marker, which is then no generated token; unknown without prompt ids.
        """
        counts = (
            "rows",
            "rows_streamed",
            "rows_with_token_ids",
            "rows_with_reasoning",
            "rows_with_tool_calls",
        )
        return {
            "dialect": self._params.dialect,
            "model": self._profile.name,
            "chat_template_kwargs": dict(self._params.chat_template_kwargs),
            **{name: sorted(values, key=str) for name, values in self._seen.items()},
            **{name: self._rows[name] for name in counts},
            **{f"rows_by_{name}": dict(sorted(counter.items())) for name, counter in self._by.items()},
        }


def _prompt_end(prompt_ids: Sequence[int] | None, think: ThinkFormat | None) -> str:
    if prompt_ids is None:
        return "unknown"
    return "think_marker" if think is not None and opens_thinking(think, prompt_ids) else "other"
