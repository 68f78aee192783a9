"""Whether the texts of answers say what their tokens say: a sample of them is decoded.

Where ids were captured nothing is made of the texts, so a difference costs no row. It measures what a run by text
alone would lose, and it shows answers whose ids belong to another answer.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from eyas.target.spec import TargetProfile
from eyas.target.template import load_tokenizer
from eyas.validate.params import EXAMPLES


@dataclass(frozen=True)
class Comparison:
    """Sampled answers by how far their texts agree with their decoded ids."""

    rows: int
    equal: int
    """Character by character."""
    whitespace: int
    """But for white space: servers strip it, or put spaces around markers (vllm-project/vllm#33457)."""
    different: int
    """They say something else."""
    examples: list[str]
    """sample_ids of a few different ones."""


def compare_with_texts(
    sample: pl.DataFrame | None, target: Path, profile: TargetProfile
) -> Comparison | None:
    """Compare a sample with the tokenizer of the target's folder, which is loaded only if there is something to do."""
    if sample is None or sample.is_empty():
        return None
    return compare(sample, load_tokenizer(target, trust_remote_code=profile.trust_remote_code), profile)


def compare(sample: pl.DataFrame, tokenizer: Any, profile: TargetProfile) -> Comparison:
    """Compare reasoning and content of each row with its decoded ids; `sample` has the columns judgement.SAMPLE.

    `tokenizer` is what target.template.load_tokenizer gives.
    """
    kinds: Counter[str] = Counter()
    different: list[str] = []
    for row in sample.iter_rows(named=True):
        said = "".join(decoded(row, tokenizer, profile))
        text = (row["reasoning"] or "") + (row["content"] or "")
        kind = _difference(said, text)
        kinds[kind] += 1
        if kind == "different":
            different.append(row["sample_id"])
    return Comparison(
        sample.height, kinds["equal"], kinds["whitespace"], kinds["different"], different[:EXAMPLES]
    )


def decoded(row: dict[str, Any], tokenizer: Any, profile: TargetProfile) -> list[str]:
    """Thinking and answer as the ids say them, without the markers and the end of the turn."""
    ids = row["token_ids"]
    if ids[-1] in profile.end_of_turn_ids:
        ids = ids[:-1]
    begin, behind = row["thinking_from"], row["answer_from"] or 0
    parts = [ids[behind:]]
    if begin is not None:
        parts = [ids[begin : row["thinking_to"]], [] if row["answer_from"] is None else ids[behind:]]
    elif profile.think is not None:
        head = profile.think.answer_start_ids
        parts = [ids[len(head) :] if ids[: len(head)] == head else ids]
    return [str(tokenizer.decode(part, skip_special_tokens=True)) for part in parts]


def _difference(said: str, text: str) -> str:
    if said == text:
        return "equal"
    return "whitespace" if "".join(said.split()) == "".join(text.split()) else "different"
