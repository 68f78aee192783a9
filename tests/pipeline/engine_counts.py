"""What the tests and benchmarks with real vLLM start it with, and what it counts with a drafter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from eyas.doctor.diagnosis import EngineCounts
from eyas.engine.client import Endpoint, ask
from eyas.engine.counters import acceptance_between, settled_metrics
from eyas.engine.questions import Question
from eyas.serving.params import ServerParams
from eyas.serving.vllm import LocalVllm
from eyas.shards import SequenceStates

SERVER = ServerParams(
    concurrency=8,
    start_timeout_s=300.0,
    request_timeout_s=300.0,
    idle_timeout_s=None,
    connect_timeout_s=10.0,
    max_attempts=1,
    give_up_after_s=60.0,
    ask_refused_again=False,
    max_model_len=256,
    max_num_seqs=8,
    kv_cache_gib=1,
    extra_args=["--enforce-eager", "--no-enable-prefix-caching"],
)


def served(
    target: Path, folder: Path, asked: Sequence[SequenceStates], steps: int, max_model_len: int
) -> EngineCounts:
    """What real vLLM counts with a drafter over the stored prompts; its answers must be the stored ones."""
    questions = [
        Question(each.sequence_id, "d", None, ids[: prompt_tokens(each)], ids[prompt_tokens(each) :])
        for each in asked
        for ids in [each.token_ids.tolist()]
    ]
    speculative = {"method": "eagle3", "model": str(folder.resolve()), "num_speculative_tokens": steps}
    server = replace(SERVER, max_model_len=max_model_len)
    with LocalVllm(target, "t", "float32", server, f"test-{folder.name}", speculative) as vllm:
        endpoint = Endpoint(vllm.base_url, "t", server)
        answers = ask(endpoint, questions, concurrency=8)
        counts = acceptance_between({}, settled_metrics(vllm.base_url))
    assert {each.sequence_id: each.answer_ids for each in questions} == {
        name: answer.token_ids for name, answer in answers.by_id.items()
    }  # whatever it drafts
    assert counts is not None
    return EngineCounts(counts, same_answers=True)


def prompt_tokens(states: SequenceStates) -> int:
    """Tokens before the answer."""
    return int((~states.loss_mask).sum())
