"""Real vLLM samples with a drafter: its drafts are accepted as the simulation expects on the very answers that it gave.

Engine and simulation count the same drafts of the same tokens, so for each answer the difference of accepted tokens has mean
zero, whatever the prompt; over all answers it is judged with its own standard error.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import polars as pl
import pytest

from eyas.drafter.model import Drafter
from eyas.drafter.rules import GreedyRule, Rule, SampledRule
from eyas.drafter.vocab import VocabMap
from eyas.engine.answer import Answer, within
from eyas.engine.asking import Asking
from eyas.engine.client import Endpoint, ask
from eyas.engine.questions import Question
from eyas.engine.run import DRAFT_ARGS
from eyas.errors import ServerError
from eyas.evaluate.replay import replay
from eyas.evaluate.tally import count
from eyas.sampling import Sampling
from eyas.serving.drafted import check_drafted_sampling
from eyas.serving.vllm import LocalVllm
from eyas.shards import HiddenStore
from tests.export.plain import write_plain
from tests.pipeline.engine_counts import SERVER
from tests.pipeline.test_engine_acceptance import (
    ANSWER_TOKENS,
    DRAFT_TOKENS,
    Held,
    draft_vocab,
    extracted,
    held,
    trained,
)

__all__ = ["held"]

pytestmark = [pytest.mark.pipeline, pytest.mark.stress, pytest.mark.timeout(900)]

ASKED_AGAIN = 24
"""Times each prompt is asked, each time with another seed."""
CHANCE = 4.5
"""Standard errors that chance may take: more once in 10^5 times."""
REPAIR = Path(__file__).parent / "vllm_repair"
PLAIN = Sampling("vllm", 0.7, 1.0, 0)
CUT = Sampling("vllm", 0.7, 0.9, 30)


@dataclass(frozen=True)
class Answered:
    """Answers of the engine, and their hidden states."""

    held: Held
    drafter: Drafter
    vocab: VocabMap
    answers: dict[str, Answer]
    store: HiddenStore

    def errors(self, rule: Rule) -> list[float]:
        """By number of accepted tokens: the engine's count less the simulated one, in standard errors."""
        rounds = replay(
            self.drafter, self.vocab, self.store, self.held.head.embedding, DRAFT_TOKENS, rule
        ).rounds.filter(pl.col("draft_tokens") == DRAFT_TOKENS)
        simulated = {
            str(key): count(rows, DRAFT_TOKENS).accepted_at for (key,), rows in rounds.group_by("sequence_id")
        }
        differences = [
            [engine - expected for engine, expected in zip(_accepted_at(answer), simulated[key], strict=True)]
            for key, answer in self.answers.items()
        ]
        return [
            sum(column) / math.sqrt(sum(each**2 for each in column))
            for column in zip(*differences, strict=True)
        ]

    def sampled(self, sampling: Sampling, drafting: str = "greedy") -> Rule:
        return SampledRule(self.held.head, sampling, drafting)


def _accepted_at(answer: Answer) -> Sequence[float]:
    counts = within(answer, DRAFT_TOKENS)
    assert counts is not None
    return counts.accepted_at


def answered(held: Held, folder: Path, sampling: Sampling, drafting: str) -> Answered:
    vocab = draft_vocab(held)
    drafter = trained(held, vocab, {})
    write_plain(folder / "drafter", drafter, vocab, held.profile, "float32")
    asking = Asking(sampling.temperature, sampling.top_p, sampling.top_k, ANSWER_TOKENS, seed=3)
    questions = [
        replace(each, sequence_id=f"{each.sequence_id}:{number}")
        for each in held.questions
        for number in range(ASKED_AGAIN)
    ]
    answers = served(held, folder / "drafter", questions, asking, drafting)
    made = [replace(each, answer_ids=answers[each.sequence_id].token_ids) for each in questions]
    usable = [each for each in made if len(each.answer_ids) > 2]
    store = extracted(folder / "hidden", held.folder, held.profile, held.head, usable, greedy=False)
    return Answered(
        held, drafter, vocab, {each.sequence_id: answers[each.sequence_id] for each in usable}, store
    )


def served(
    held: Held, drafter: Path, questions: list[Question], asking: Asking, drafting: str
) -> dict[str, Answer]:
    speculative = {
        "method": "eagle3",
        "model": str(drafter),
        "num_speculative_tokens": DRAFT_TOKENS,
        "draft_sample_method": drafting,
    }
    server = replace(SERVER, extra_args=[*SERVER.extra_args, *DRAFT_ARGS])
    with LocalVllm(
        held.folder, held.profile.name, "float32", server, "test-sampled", speculative,
        arguments=("--worker-extension-cls", "spread_sampling.Spread"), environment={"PYTHONPATH": str(REPAIR)},
    ) as vllm:  # fmt: skip
        return ask(Endpoint(vllm.base_url, held.profile.name, SERVER, asking), questions, concurrency=8).by_id


def test_greedy_drafts_of_a_sampling_target(held: Held, tmp_path: Path) -> None:
    found = answered(held, tmp_path, PLAIN, "greedy")
    assert all(abs(each) < CHANCE for each in found.errors(found.sampled(PLAIN)))
    for wrong in (
        found.sampled(replace(PLAIN, temperature=1.0)),
        found.sampled(PLAIN, "probabilistic"),
        GreedyRule(),
    ):
        assert max(abs(each) for each in found.errors(wrong)) > 2 * CHANCE


def test_a_target_cut_to_top_k_and_top_p(held: Held, tmp_path: Path) -> None:
    found = answered(held, tmp_path, CUT, "greedy")
    assert all(abs(each) < CHANCE for each in found.errors(found.sampled(CUT)))
    assert max(abs(each) for each in found.errors(found.sampled(PLAIN))) > 2 * CHANCE


def test_sampled_drafts(held: Held, tmp_path: Path) -> None:
    found = answered(held, tmp_path, PLAIN, "probabilistic")
    assert all(abs(each) < CHANCE for each in found.errors(found.sampled(PLAIN, "probabilistic")))
    assert max(abs(each) for each in found.errors(found.sampled(PLAIN))) > 2 * CHANCE


def test_without_the_repair_this_vllm_is_refused() -> None:
    """Once a fixed vLLM is pinned, this fails: then the repair and the check can go."""
    with pytest.raises(ServerError, match="can't sample with a drafter"):
        check_drafted_sampling(SERVER)
