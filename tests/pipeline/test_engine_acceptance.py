"""Real vLLM serves exported drafters: the same tokens, and the acceptance that was simulated."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

from eyas import tokenkinds
from eyas.drafter.batch import pack
from eyas.drafter.config import DrafterConfig
from eyas.drafter.model import Drafter
from eyas.drafter.unroll import unroll
from eyas.drafter.vocab import VocabMap
from eyas.engine.accepted import accepted
from eyas.engine.asking import GREEDY, Asking
from eyas.engine.client import Endpoint, ask
from eyas.engine.compare import compare
from eyas.engine.measure import Measurement, measure
from eyas.engine.questions import Question, levels
from eyas.engine.run import DRAFT_ARGS
from eyas.engine.runs import token_ids
from eyas.evaluate.replay import replay
from eyas.evaluate.tally import count, count_at_most
from eyas.serving.vllm import LocalVllm
from eyas.shards import HiddenStore, SequenceStates, ShardWriter, StoreMeta, label_positions
from eyas.target.model import TargetHead, capture, load_target
from eyas.target.spec import TargetProfile
from tests.export.plain import check_plain, write_plain
from tests.pipeline.engine_counts import SERVER
from tests.tiny_target import profile_of, write_target

pytestmark = [pytest.mark.pipeline, pytest.mark.timeout(600)]

PROMPTS, ANSWER_TOKENS, DRAFT_TOKENS = 16, 48, 3


@dataclass(frozen=True)
class Held:
    """A tiny target with its greedy answers and hidden states."""

    folder: Path
    profile: TargetProfile
    head: TargetHead
    questions: list[Question]
    store: HiddenStore


@pytest.fixture(scope="module")
def held(tmp_path_factory: pytest.TempPathFactory) -> Held:
    folder = write_target(
        tmp_path_factory.mktemp("target") / "tiny",
        hidden_size=64,
        intermediate_size=128,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=32,
    )
    profile = profile_of(folder, dtype="float32")
    rng = np.random.default_rng(1)
    asked = [
        Question(
            f"d:{number}", "d", None, rng.integers(3, 290, size=5 + number).tolist(), [0] * ANSWER_TOKENS
        )
        for number in range(PROMPTS)
    ]
    with LocalVllm(folder, profile.name, "float32", SERVER, "test-without") as server:
        answers = ask(Endpoint(server.base_url, profile.name, SERVER), asked, concurrency=8)
    questions = [replace(each, answer_ids=answers.token_ids[each.sequence_id]) for each in asked]
    head = TargetHead.read(folder, profile, "float32")
    store = extracted(tmp_path_factory.mktemp("hidden"), folder, profile, head, questions)
    return Held(folder, profile, head, questions, store)


def extracted(
    directory: Path,
    folder: Path,
    profile: TargetProfile,
    head: TargetHead,
    questions: list[Question],
    *,
    greedy: bool = True,
) -> HiddenStore:
    model = load_target(folder, "float32")
    meta = StoreMeta(
        target_digest=profile.digest,
        target_name=profile.name,
        target_revision=profile.revision,
        source_digest="questions",
        dtype="float32",
        aux_layer_ids=profile.aux_layer_ids,
        backend="transformers",
        versions={},
    )
    writer = ShardWriter(directory, meta, shard_bytes=10**9)
    for question in questions:
        ids = torch.tensor([*question.prompt_ids, *question.answer_ids])
        mask = torch.arange(len(ids)) >= len(question.prompt_ids)
        labels = label_positions(mask)
        states = capture(model, ids.unsqueeze(0), None, profile.aux_layer_ids)
        last = states.last[0, labels.long()].clone()
        logits = head.logits(last)
        if greedy:  # or nothing below would mean anything
            assert torch.equal(logits.argmax(-1), ids[labels.long() + 1])
        writer.add(
            SequenceStates(
                question.sequence_id,
                ids,
                mask.to(torch.uint8) * tokenkinds.ANSWER,
                1.0,
                states.aux[0].clone(),
                labels,
                last,
                logits.argmax(-1),
                logits.logsumexp(-1),
            )
        )
    writer.close()
    return HiddenStore(directory)


def trained(held: Held, vocab: VocabMap, flags: dict[str, bool]) -> Drafter:
    """Half-way overfitted on every second answer: some of its drafts are right."""
    torch.manual_seed(0)
    profile = held.profile
    config = DrafterConfig(
        hidden_size=profile.hidden_size,
        target_hidden_size=profile.hidden_size,
        num_aux_layers=len(profile.aux_layer_ids),
        intermediate_size=128,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=32,
        vocab_size=profile.vocab_size,
        draft_vocab_size=vocab.size,
        rms_norm_eps=profile.rms_norm_eps,
        rope_theta=profile.rope_theta,
        rope_scaling=profile.rope_scaling,
        max_position_embeddings=profile.max_position_embeddings,
        aux_layer_ids=profile.aux_layer_ids,
        **flags,
    )
    drafter = Drafter(config)
    batch = pack([held.store[place] for place in range(0, PROMPTS, 2)], DRAFT_TOKENS)
    labels = vocab.to_draft(batch.argmax)[batch.step_labels]  # [P, S]
    optimizer = torch.optim.AdamW(drafter.parameters(), lr=3e-3)
    for _ in range(60):
        optimizer.zero_grad()
        for step, output in enumerate(unroll(drafter, batch, held.head.embedding, DRAFT_TOKENS)):
            rows = batch.step_valid[:, step] & (labels[:, step] >= 0)
            functional.cross_entropy(drafter.logits(output[rows]), labels[rows, step]).backward(
                retain_graph=True
            )
        optimizer.step()
    return drafter.eval()


def draft_vocab(held: Held) -> VocabMap:
    """Two thirds of the generated tokens and every end of turn."""
    seen = sorted({token for question in held.questions for token in question.answer_ids})
    kept = {token for place, token in enumerate(seen) if place % 3} | set(held.profile.end_of_turn_ids)
    return VocabMap.of_ids(torch.tensor(sorted(kept)), held.profile.vocab_size)


def accepted_by_engine(
    held: Held, folder: Path, draft_tokens: int, asking: Asking = GREEDY, sampling: str = "greedy"
) -> Measurement:
    """Real vLLM with the drafter of a folder answers all questions."""
    speculative = {
        "method": "eagle3",
        "model": str(folder),
        "num_speculative_tokens": draft_tokens,
        "draft_sample_method": sampling,
    }
    server = replace(SERVER, extra_args=[*SERVER.extra_args, *DRAFT_ARGS])
    with LocalVllm(held.folder, held.profile.name, "float32", server, "test-with", speculative) as vllm:
        endpoint = Endpoint(vllm.base_url, held.profile.name, SERVER, asking)
        return measure(endpoint, levels(held.questions, [8], prompts_at_1=1), None)


@pytest.mark.parametrize(
    ("flags", "draft_tokens"),
    [
        pytest.param({}, 3, id="plain", marks=pytest.mark.stress),
        pytest.param(
            {"norm_before_fc": True, "norm_before_residual": True, "norm_output": True}, 3, id="three norms"
        ),
        pytest.param({"fc_norm": True}, 1, id="fc_norm, 1 draft token", marks=pytest.mark.stress),
        pytest.param({"norm_output": True}, 5, id="norm_output, 5 draft tokens", marks=pytest.mark.stress),
    ],
)
def test_the_engine_accepts_what_was_simulated(
    held: Held, tmp_path: Path, flags: dict[str, Any], draft_tokens: int
) -> None:
    vocab = draft_vocab(held)
    drafter = trained(held, vocab, flags)
    write_plain(tmp_path, drafter, vocab, held.profile, "float32")
    check_plain(tmp_path, held.profile)
    rounds = replay(drafter, vocab, held.store, held.head.embedding, draft_tokens).rounds
    rounds = rounds.filter(rounds["draft_tokens"] == draft_tokens)
    simulated = count(rounds, draft_tokens)
    measured = accepted_by_engine(held, tmp_path, draft_tokens)
    stored = {each.sequence_id: each.answer_ids for each in held.questions}
    assert compare(stored, token_ids(measured, 8)).differences == []
    found = accepted(measured, 8, ["d"], dict.fromkeys(stored, "d"))
    assert found.in_answers == simulated  # every draft of every answer
    # The engine's counters hold what it accepts behind the end of an answer too; the simulation can't know that.
    assert found.counted is not None
    assert found.counted.drafts == simulated.drafts
    at_most = count_at_most(rounds, draft_tokens).accepted_at
    for low, counted, high in zip(simulated.accepted_at, found.counted.accepted_at, at_most, strict=True):
        assert low <= counted <= high
    assert simulated.length is not None
    assert 1.2 < simulated.length < draft_tokens + 0.8  # both ends would hide a mistake
